"""Eight float64 side by side: a value that kernels load, store, add, subtract and multiply as one.

LLVM does not see by itself that eight short chains of dependent operations, each in a lane of its own, are one chain of
vector operations. Each lane is rounded as the scalar operation would be: nothing is contracted or reordered. Indices
are not checked, and negative ones do not wrap.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, cast

from llvmlite import ir  # type: ignore[import-untyped] # it has no type hints
from numba import types
from numba.extending import intrinsic, models, overload, register_model

WIDTH = 8
VECTOR = ir.VectorType(ir.DoubleType(), WIDTH)
ELEMENTS = {types.float32: ir.FloatType(), types.float64: ir.DoubleType()}
Operation = Callable[..., Any]


class Lanes(types.Type):  # type: ignore[misc] # numba has no type hints
    """The type of eight float64 side by side."""

    def __init__(self) -> None:
        super().__init__("Lanes")


LANES = Lanes()


@register_model(Lanes)
class _Model(models.PrimitiveModel):  # type: ignore[misc] # numba has no type hints
    def __init__(self, manager: Any, of: Any) -> None:
        super().__init__(manager, of, VECTOR)


def _primitive(typed: Operation) -> Operation:
    return cast(Operation, intrinsic(typed))


def _place(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> tuple[Any, int]:
    # Where the eight elements of an array from an index on stand, and how they are aligned.
    data = context.make_array(kind)(context, builder, array).data
    vector = ir.VectorType(ELEMENTS[kind.dtype], WIDTH)
    return builder.bitcast(builder.gep(data, [index]), vector.as_pointer()), kind.dtype.bitwidth // 8


@_primitive
def load(_typing: Any, array: Any, index: Any) -> Any:
    """Read the eight elements of a flat float array from an index on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place, align = _place(context, builder, signature.args[0], *arguments)
        lanes = builder.load(place, align=align)
        return lanes if array.dtype == types.float64 else builder.fpext(lanes, VECTOR)

    return LANES(array, types.intp), generate


@_primitive
def store(_typing: Any, array: Any, index: Any, lanes: Any) -> Any:
    """Write the eight elements of a flat float64 array from an index on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place, align = _place(context, builder, signature.args[0], *arguments[:2])
        builder.store(arguments[2], place, align=align)
        return context.get_dummy_value()

    return types.none(array, types.intp, LANES), generate


@_primitive
def same(_typing: Any, number: Any) -> Any:
    """Put one number into every lane."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        integer, empty = ir.IntType(32), ir.Constant(VECTOR, ir.Undefined)
        one = builder.insert_element(empty, arguments[0], integer(0))
        return builder.shuffle_vector(one, empty, ir.Constant(ir.VectorType(integer, WIDTH), [0] * WIDTH))

    return LANES(types.float64), generate


def _lane_by_lane(operation: Operation, instruction: str) -> None:
    @_primitive
    def apply(_typing: Any, x: Any, y: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return getattr(builder, instruction)(*arguments)

        return LANES(LANES, LANES), generate

    overload(operation)(lambda x, y: (lambda x, y: apply(x, y)) if x == y == LANES else None)


_lane_by_lane(operator.add, "fadd")
_lane_by_lane(operator.sub, "fsub")
_lane_by_lane(operator.mul, "fmul")
