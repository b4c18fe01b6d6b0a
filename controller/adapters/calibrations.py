"""Near demand's calibrations as bytes: a new leader goes on with what its predecessor measured.

Promises: what comes back is what was packed, in single precision (`Nearcast.small`); one of a release that measures
otherwise, or cut short, is as good as none. Called by near models.
"""

import struct
import zlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from forecaster import nearcast, quantile_regression
from forecaster.nearcast import Nearcast

_SUM = struct.Struct("<I")  # of all before it, begun with what tells releases apart


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was measured.

    Attributes:
        fit: The calibration itself.
        end_minute: Minute since 1970 in which its history ends.
        lead_s: Lead time that it was made for, seconds.
        lead_minutes: The same in its steps.
    """

    fit: Nearcast
    end_minute: int
    lead_s: float
    lead_minutes: int


def pack(made: Calibration, levels: tuple[float, ...], valid_steps: int) -> bytes:
    """Return about 15 kB. `levels` and `valid_steps` are those of every calibration of this release."""
    layout, key = layout_of(levels, valid_steps)
    head, fit = np.zeros((), layout), made.fit
    for name in ("end_minute", "lead_s", "lead_minutes"):
        head[name] = getattr(made, name)
    for name in ("unit", "mean_rise", "lines", "shift", "cap", "weight", "rises"):
        head[name] = getattr(fit, name)
    packed = head.tobytes() + fit.changes.astype("<u2").tobytes() + fit.envelopes.astype("<f4").tobytes()
    return packed + _sum(packed, key)


def unpack(packed: bytes, levels: tuple[float, ...], valid_steps: int) -> Calibration | None:
    """Return what was packed; None if this release did not, or not all of it is there."""
    layout, key = layout_of(levels, valid_steps)
    count = (len(packed) - layout.itemsize - _SUM.size) // 6  # bytes of a change and its envelope
    if count < 1 or packed[-_SUM.size :] != _sum(packed[: -_SUM.size], key):
        return None
    head = np.frombuffer(packed, layout, count=1)[0]
    fit = Nearcast(
        step_s=60,
        lead_steps=int(head["lead_minutes"]),
        valid_steps=valid_steps,
        levels=levels,
        unit=float(head["unit"]),
        shift=head["shift"],
        cap=head["cap"],
        weight=head["weight"],
        changes=np.frombuffer(packed, "<u2", count=count, offset=layout.itemsize),
        envelopes=np.frombuffer(packed, "<f4", count=count, offset=layout.itemsize + 2 * count),
        rises=head["rises"],
        mean_rise=head["mean_rise"],
        lines=head["lines"],
    )
    return Calibration(fit, int(head["end_minute"]), float(head["lead_s"]), int(head["lead_minutes"]))


def _sum(packed: bytes, key: int) -> bytes:
    return _SUM.pack(zlib.crc32(packed, key))


@lru_cache(maxsize=4)
def layout_of(levels: tuple[float, ...], valid_steps: int) -> tuple[np.dtype[np.void], int]:
    """Return how a calibration lies in memory, but for its envelopes, and a number for how it is to be read."""
    experts, timed, count = 2 * (nearcast.TIMED.stop + 1), len(nearcast.TIMED), len(levels)
    layout = np.dtype(
        [
            ("end_minute", "<i8"),
            ("lead_s", "<f8"),
            ("unit", "<f8"),
            ("mean_rise", "<f8", (2,)),
            ("lines", "<f8", (2, 2, nearcast.FEATURES + 1)),
            ("shift", "<f4", (experts, count)),
            ("cap", "<f4", (2, timed, count)),
            ("weight", "<f4", (experts, count)),
            ("rises", "<f4", (2, valid_steps)),
            ("lead_minutes", "<u4"),
        ]
    )
    # Figures mean what the code that made them says: with other code they are measured anew, rather than misread.
    code = b"".join(Path(str(module.__file__)).read_bytes() for module in (nearcast, quantile_regression))
    return layout, zlib.crc32(repr((layout, levels, valid_steps)).encode() + code)
