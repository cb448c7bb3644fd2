"""Make training prompts for a drafter from templates and topics.

The prompts are of the same kind as those in ``demo.jsonl`` but share none with it, so that a drafter trained
on a model's answers to these can be measured on those.
"""

import json
import random
import re

BENCHMARKS = ("chat", "code", "math", "extraction")
# Choices for each slot; <slot> in a choice is filled in turn, <slot2>, <slot3> ... with other choices of it.
GRAMMAR = r"""
name = Maria|Tom|Aisha|Ben|Chloe|David|Emma|Farid|Grace|Hugo|Ines|Jack|Kira|Leo|Mina|Nora|Omar
city = Paris|Oslo|Rome|Berlin|Cairo|Dublin|Prague|Athens|Lima|Kyoto|Boston|Nairobi|Toronto|Delhi|Seoul|Zurich
day = Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday
percent = 5|10|20|25|30|40|50|60|75
thing = apples|marbles|pencils|cookies|books|coins|shells|cards|candles|tickets|flowers|stamps
item = kettle|jacket|backpack|mirror|guitar|blanket|clock|helmet|basket|camera|pillow|tent|wallet|carpet|radio
color = red|blue|green|yellow|black|white|purple|pink|brown|gray
job = teacher|nurse|farmer|pilot|chef|baker|painter|plumber|librarian|gardener|carpenter
animal = fox|rabbit|turtle|bear|mouse|crow|horse|whale|goat|hedgehog|penguin|squirrel|wolf
place = forest|village|castle|desert|harbor|mountain|island|market|garden|train station|school|museum
subject = gravity|photosynthesis|the water cycle|a rainbow|electricity|the internet|a black hole|a volcano
|recycling|a vaccine|democracy|supply and demand|evolution|a computer virus|compound interest
skill = cooking rice|learning a new language|saving money|public speaking|gardening|time management|studying
for exams|playing the piano|making new friends|eating healthy food|training a puppy
mood = funny|sad|hopeful|mysterious|cheerful|calm|surprising|gentle|strange|cozy
tone = polite|friendly|short|formal|warm|cheerful|clear
person = my boss|my neighbor|a friend|my teacher|a customer|my aunt|a colleague|my coach|the hotel
purpose = asking for a day off|saying thank you for a gift|moving a meeting to Friday|asking about the price
|saying sorry for being late|asking for help with a project|sharing good news
shop = coffee shop|bookstore|toy store|flower shop|bike shop|pet salon|gym
pair = tea and coffee|cats and dogs|trains and planes|a lake and a river|butter and margarine|fiction and
nonfiction|a city and a village|a crocodile and an alligator
rude = Your idea is bad.|Stop calling me.|You made a mistake again.|I do not want to come.|This food is cold.
style = in two sentences|in simple words|briefly|with one example|for a child|as a short list|in three points
lang = Python|JavaScript|Java|C|Go|Ruby|TypeScript|C++|Rust|Python|Python
extra = Add a short docstring.|Add comments.|Return only the code.|Show one example call.|Keep it short.
func = reverses a string|returns the largest number in a list|checks if a number is prime|sums the digits of a
number|removes duplicates from a list|counts the words in a sentence|finds the second largest number|returns
the first n Fibonacci numbers|checks if two words are anagrams|merges two sorted lists|converts miles to
kilometers|finds the longest word in a sentence|checks if a year is a leap year|computes the average of a list
|sorts a list of names by length|computes the area of a circle|counts how often a letter appears
cls = Car|Dog|Student|Library|Rectangle|Stack|Queue|Timer|Player|Book|Circle|Cart|Robot|Invoice
method = add|remove|update|show|reset|start|stop|describe|save
var = total|count|value|score|price|length|result|amount|index|level|weight|speed
tab = orders|customers|books|students|products|movies|flights|teams|songs|invoices
field = name|price|year|city|rating|age|score|country|quantity|title
task = renames all .jpg files|prints today's date|counts the files in a folder|deletes all .tmp files
page = a login form|a photo gallery|a contact form|a menu bar|a price table|a recipe
opening = On <date> <name> moved to <city>.|Early on <day> <name> opened the small <shop>.|The <job> left
<city> at <time>.|<name> and <name2> met in <city> on <date>.|The <place> was quiet on <day> morning.|In
<city> a <job> found an old <item> under a bench.|A <color> <animal> lived near the <place>.
middle = It rained for <small> hours.|The <item2> cost <mid> dollars and came with a <color2> <item3>.|A
<job2> from <city2> helped with the work.|Nobody had seen the <animal2> since <day2>.|<name3> brought <small2>
<thing> and a map of <city3>.|The meeting began at <time2> and lasted <small3> hours.|Visitors paid <large>
coins to see the <color3> <item4>.
ending = In the end the <item5> was sold for <large2> dollars.|They went home at <time3>.|The next trip is
planned for <date2>.|<name4> wrote it all down in a <color4> diary.|After that, the <place3> was never empty
again.|On <day3> they returned to <city4>.
passage = <opening> <middle> <ending>|<opening> <middle> <middle2> <ending>
invite = Hello <name>, the <shop> opens on <day> <date> at <time> in <city>. Please bring <small> <thing>.
|Dear <name>, your visit to the <place> in <city> is booked for <day> <date>, <time>. The fee is <mid>
dollars.|Reminder for <name>: the <job> will come on <day> <date> at <time>. The office is in <city>.
list = - <item>\n- <small> <thing>\n- <item2>\n- <color> <item3>\n- <item4>\n- <small2> <thing2>
|<name1>\n<name2>\n<name3>\n<name4>\n<name5>\n<name6>\n<name7>
|<city1>\n<city2>\n<city3>\n<city4>\n<city5>\n<city6>\n<city7>\n<city8>|call <name>\nbuy a <item>\nvisit
<name2> in <city>\nfix the <item2>\npay <mid> dollars
log = <time1> INFO <item1> sent to <city1>\n<time2> WARN <item2> sent to <city2>\n<time3> INFO <item3> sent to
<city3>\n<time4> WARN <item4> sent to <city4>
snippet = def f(<var>, b):\n\twhile b:\n\t\t<var>, b = b, <var> % b\n\treturn <var> + <small>|def
f(<var>):\n\treturn [<var>[i] for i in range(0, len(<var>), <small>)]|<var> = <mid>\nwhile <var> >
0:\n\tprint(<var>)\n\t<var> = <var> - <small>|def f(words):\n\t<var> = {}\n\tfor w in words:\n\t\t<var>[w] =
len(w) * <small>\n\treturn <var>|<var> = [<mid>, <small>, <large>]\n<var>.sort()\nprint(<var>[-1])|def
f(<var>, <var2>=<small>):\n\tif <var> > <var2>:\n\t\treturn <var> - <var2>\n\treturn 0|<var> = 0\nfor i in
range(<mid>):\n\tif i % <small> == 0:\n\t\t<var> += i\nprint(<var>)
chat = Can you explain <subject> to me <style>? I am <mid> years old.|I am new to <skill>. Give me <small>
useful tips, one per line.|Write a <tone> email to <person>, <purpose>. Keep it under <mid2> words.|Tell me a
<mood> story about a <animal> and a <job> in the <place>. Use about five sentences.|What is the difference
between <pair>? Answer <style>.|Suggest <small> names for a new <shop> in <city> and say why each one fits.
|Write a short <mood> poem about a <color> <animal> in the <place>.|Make this sentence more <tone> and keep
the meaning: "<rude>" Then explain your change.|What are the advantages and disadvantages of <skill>? Answer
<style>.|You are a <job>. Describe a normal <day> at work in a <mood> way, in four sentences.|Write a <mood>
dialogue between a <animal> and a <animal2> about a <item>.|Plan a <mood> <day> in <city> for a <job>. Give
one idea for each part of the day.|My friend <name> wants to get better at <skill>. Make a plan for <small>
days.|Give me <small> gift ideas for a <job> who likes <skill>.|Describe a <color> <item> so that someone
wants to buy it. Make the text <tone>.
code = Write a <lang> function that <func>. <extra>|Explain <style> what this code does:\n\n<snippet>|What
does this Python code print or return? Explain <style>.\n\n<snippet>|Add a comment to every line of this
code:\n\n<snippet>|Rewrite this Python code in JavaScript:\n\n<snippet>|Rename the variable <var> to <var9> in
this code and show the full result:\n\n<snippet>|Create a <lang> class named <cls> with the methods <method>,
<method2> and <method3>. <extra>|Write an SQL query that selects <field> and <field2> from the table <tab>
where <field3> is greater than <mid>.|Write an SQL query that counts the rows in <tab> for each <field>,
ordered by <field>.|Write a bash script that <task>. <extra>|Write a small HTML page with <page>, a <color>
heading and a link to the <place>.|Write <small> short tests in Python for a function that <func>.|Write a
Python function that reads a CSV file of <tab> and returns the rows with a <field> above <mid>.|How do I write
a function that <func> in <lang>? Show the code first, then explain it <style>.|Make a Python dictionary with
<small> <tab>, each with a <field> and a <field2>, and print it with a loop.
math = <name> has <mid> <thing>. <name2> gives <name> <small> more and takes <small2> away. How many <thing>
are left? Show each step.|A <animal> runs <small> kilometers per hour for <small2> hours. How far does it go?
Write the formula first.|Find <percent>% of <large>. Show the work and give the final answer.|Solve for x and
write one step per line: <small>x + <mid> = <large>|A room is <mid> feet long and <small> feet wide. Compute
its area and its perimeter with all steps.|Find the average of these numbers step by step: <small>, <mid>,
<small2>, <mid2>, <large>|A <item> costs $<large>. <name> gets a discount of <percent>%. What is the new
price?|Convert <mid> hours and <small> minutes to minutes, then to seconds. Show both steps.|Write the next
five numbers of the sequence that starts at <mid> and grows by <small> each time.|Add the fractions 1/<small>
and 1/<small2>. Explain how you find the common denominator.|<small> friends share <large> <thing> equally.
How many does each get, and how many are left over?|Compute <large> + <large2> step by step, starting with the
ones.|A box holds <small> <color> <thing> and <small2> <color2> <thing>. What is the probability of drawing a
<color> one?|A <job> earns $<mid> per hour and works <small> hours on <day>. How much is that in total?|Find
the least common multiple of <small> and <mid> by listing multiples.
askpassage = Copy this text exactly as it is:|Copy the passage and replace the word "<word>" with "<item9>":
|Write each sentence of this text on its own numbered line:|List all names, places and numbers in this text:
|Quote the sentence of this text that contains the word "<word>":|Write the sentences of this passage in
reverse order:|Repeat this text, but leave out the last sentence:|Put quotation marks around each sentence:
asklist = Sort these lines alphabetically:|Write this list again in reverse order:|Turn this into a numbered
list:|Join these lines into one line, separated by commas:|Copy the list and add "<item9>" at the end:
asktable = Convert this data to a JSON list:|Copy this data as a markdown table:|List only the values of
"<column>", one per line:|Copy this data, but change "<cell>" to "<swap>":|Copy only the first two records:
|Copy all the data except the record with "<cell>":|Write one "key: value" line for each value here:
askinvite = Extract the name, day, date and time from this message, one per line:|Return the details of this
message as a JSON object:|Copy this message, but change the time to <time9>:|Who, where and when? Quote from:
asklog = Copy only the lines with WARN:|Copy just the INFO lines:|Copy it without the times:
asksnippet = Copy this code exactly:|Return this code with the variable <var> renamed to <var9>:
columns = name city age|item color price|animal place count|job day time|name date
month = March|April|July|October
"""
NUMBERS = {"small": range(2, 13), "mid": range(13, 60), "large": range(110, 900, 5), "date": range(2, 28)}
NUMBERS |= {"age": range(18, 80), "price": range(12, 400, 3), "count": range(2, 50)}
POOLS = {slot: [str(n) for n in numbers] for slot, numbers in NUMBERS.items()}
for _line in re.split(r"\n(?=[a-z]+ = )", GRAMMAR.strip()):
    _slot, _, _text = " ".join(_line.split()).partition(" = ")
    _text = _text.replace(r"\n", "\n").replace(r"\t", "    ")
    POOLS[_slot] = [choice.strip(" ") for choice in _text.split("|")]
POOLS["date"] = [f"{day} {month}" for month in POOLS["month"] for day in POOLS["date"]]
POOLS["time"] = [f"{hour:02d}:{minute}" for hour in range(8, 20) for minute in (10, 15, 20, 40, 45)]


def _fill(template: str, rng: random.Random, picked: dict[str, str]) -> str:
    def pick(match: re.Match[str]) -> str:
        slot, kind = match[1], match[2]
        if slot not in picked:
            taken = {value for key, value in picked.items() if key.rstrip("0123456789") == kind}
            value = rng.choice([value for value in POOLS[kind] if value not in taken])
            picked[slot] = _fill(value, rng, picked)
        return picked[slot]

    return re.sub(r"<(([a-z]+)\d*)>", pick, template)


def _table(rng: random.Random, picked: dict[str, str]) -> str:
    names = rng.choice(POOLS["columns"]).split()
    length = rng.randint(4, 7)
    *rows, spare = zip(*(rng.sample(POOLS[name], length) for name in names), strict=True)
    place = rng.randrange(len(names))
    picked.update(column=names[place], cell=rng.choice(rows)[place], swap=spare[place])
    if (style := rng.choice(("csv", "markdown", "json"))) == "json":
        return "[" + ",\n ".join(json.dumps(dict(zip(names, row, strict=True))) for row in rows) + "]"
    if style == "markdown":
        return "\n".join(f"| {' | '.join(line)} |" for line in (names, ["---"] * len(names), *rows))
    return "\n".join(",".join(line) for line in (names, *rows))


def _prompt(benchmark: str, rng: random.Random) -> str:
    picked: dict[str, str] = {}
    if benchmark != "extraction":
        return _fill(f"<{benchmark}>", rng, picked)
    kind, ask = rng.choice([(key[3:], ask) for key in POOLS if key.startswith("ask") for ask in POOLS[key]])
    text = _table(rng, picked) if kind == "table" else _fill(f"<{kind}>", rng, picked)
    if kind == "passage":
        picked["word"] = rng.choice(re.findall(r"\b[A-Za-z]{4,}\b", text))
    return f"{_fill(ask, rng, picked)}\n\n{text}"


def training_prompts(count: int, seed: int) -> list[dict]:
    """Make distinct prompts, spread evenly over the benchmarks.

    Parameters
    ----------
    count : int
        Number of prompts.
    seed : int
        Seed of the random choices; the same seed gives the same prompts.

    Returns
    -------
    list of dict
        Prompts with the keys ``id``, ``benchmark`` and ``messages``, in turn over the benchmarks.
    """
    rng = random.Random(seed)
    texts: dict[str, str] = {}
    while len(texts) < count:
        benchmark = BENCHMARKS[len(texts) % len(BENCHMARKS)]
        texts.setdefault(_prompt(benchmark, rng), benchmark)
    return [
        {"id": f"train-{i:05d}", "benchmark": benchmark, "messages": [{"role": "user", "content": text}]}
        for i, (text, benchmark) in enumerate(texts.items(), 1)
    ]
