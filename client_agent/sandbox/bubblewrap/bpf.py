"""An assembler for classic BPF, as seccomp uses it (linux/filter.h, linux/seccomp.h)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, TypeAlias

Instruction: TypeAlias = tuple[int, int, int, int]
"""Code, jump if true, jump if false (both: how many instructions to skip), operand."""

NR: Final = 0
ARCH: Final = 4
"""Offsets in ``struct seccomp_data``."""

ALLOW: Final = 0x7FFF0000
KILL_PROCESS: Final = 0x80000000
_ERRNO: Final = 0x00050000

_LD_ABS: Final = 0x20
_JEQ: Final = 0x15
_JGE: Final = 0x35
_JSET: Final = 0x45
_RET: Final = 0x06


def low(argument: int) -> int:
    """Offset of the low 32 bits of a system call's argument on a little-endian machine."""
    return 16 + 8 * argument


def load(offset: int) -> Instruction:
    return (_LD_ABS, 0, 0, offset)


def ret(action: int) -> Instruction:
    return (_RET, 0, 0, action)


def errno(number: int) -> int:
    """The action that refuses a call with this error."""
    return _ERRNO | number


def if_equal(value: int, body: Sequence[Instruction]) -> list[Instruction]:
    """Run ``body`` if the accumulator is ``value``, otherwise skip it."""
    return [(_JEQ, 0, _short(body), value), *body]


def unless_equal(value: int, body: Sequence[Instruction]) -> list[Instruction]:
    return [(_JEQ, _short(body), 0, value), *body]


def if_at_least(value: int, body: Sequence[Instruction]) -> list[Instruction]:
    """Unsigned comparison."""
    return [(_JGE, 0, _short(body), value), *body]


def if_any_bit(mask: int, body: Sequence[Instruction]) -> list[Instruction]:
    return [(_JSET, 0, _short(body), mask), *body]


def assemble(program: Sequence[Instruction]) -> bytes:
    """The ``struct sock_filter`` array that bwrap's ``--seccomp FD`` reads. Raises ValueError if
    it is longer than the kernel takes (4096)."""
    if not 0 < len(program) <= 4096:
        raise ValueError(f"a filter of {len(program)} instructions")
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in program)


def _short(body: Sequence[Instruction]) -> int:
    if len(body) > 255:
        raise ValueError("a jump of more than 255 instructions")
    return len(body)
