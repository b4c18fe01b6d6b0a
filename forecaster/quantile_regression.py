"""Where a quantity lies, and how far it may rise above that, given what is known: linear quantile regression.

Two quantiles are fitted: a usual one, and a high one whose distance above the first is the spread. Both are fitted
twice, each time on one half of the record, so that the other half tells how good the line is on what it has not
seen: a line judged on its own samples looks too good just where it matters, in the tail.

Promises: pure and deterministic; a few milliseconds for some thousand samples; few effective samples pull the
slopes towards zero. Called by: nearcast.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from forecaster.types import Floats

Ints = NDArray[np.int64]
Singles = NDArray[np.float32]

SAMPLES_MIN: Final = 300
USUAL_LEVEL: Final = 0.7
HIGH_LEVEL: Final = 0.9
# Ridge on standardised slopes, in samples.
RIDGE_SAMPLES: Final = 10.0
ROUNDS: Final = 12
# Residuals below this count alike: reweighting must not divide by nothing.
RESIDUAL_MIN: Final = 0.01
SPREAD_MIN: Final = 0.03


@dataclass(frozen=True, slots=True)
class Lines:
    """Fitted lines.

    Attributes:
        centre: `[F]` subtracted from the features.
        scale: `[F]` the features are divided by.
        slopes: `[2, 2, F]` by half of the record that was not fitted, and by level.
    """

    centre: Floats
    scale: Floats
    slopes: Floats

    def say(self, features: Floats, unseen_by: Ints) -> tuple[Floats, Floats]:
        """Return the usual value and the spread above it, `[N]` each, of samples of the record.

        Args:
            features: `[F, N]`.
            unseen_by: `[N]` 0 or 1, the half each sample belongs to: it is judged by the lines fitted on the other.
        """
        slopes = self.slopes / self.scale
        first, second = slopes @ features - (slopes @ self.centre)[:, :, None]
        usual, high = np.where(unseen_by == 0, first, second)
        return usual, np.maximum(high - usual, SPREAD_MIN)

    def new(self) -> Floats:
        """Return `[2, F + 1]` by level: slopes and intercept for something new, the means of both halves.

        The spread is the high value less the usual one, at least `SPREAD_MIN`.
        """
        slopes = self.slopes.mean(axis=0) / self.scale
        return np.column_stack((slopes, -slopes @ self.centre))


def fit_lines(features: Floats, target: Floats, weight: Floats, half: Ints) -> Lines | None:
    """Fit; None when there are too few samples.

    Args:
        features: `[F, N]`, the first row all ones; finite.
        target: `[N]`, finite.
        weight: `[N]`, positive.
        half: `[N]` 0 or 1.
    """
    if len(target) < SAMPLES_MIN or min(int((half == 0).sum()), int((half == 1).sum())) < SAMPLES_MIN // 2:
        return None
    centre, scale = features.mean(axis=1), features.std(axis=1)
    scale = np.where(scale < 1e-6, 1.0, scale)
    centre[0], scale[0] = 0.0, 1.0
    # Sums over thousands of samples are what a fit costs: in single precision, which moves what lines say by a few
    # ten-thousandths at most. The few equations that they lead to are solved in double.
    scaled = ((features - centre[:, None]) / scale[:, None]).astype(np.float32)
    wanted, share = target.astype(np.float32), (weight / weight.mean()).astype(np.float32)
    slopes = [
        [_line(seen, wanted[places], share[places], level) for level in (USUAL_LEVEL, HIGH_LEVEL)]
        for places in (np.flatnonzero(half != 0), np.flatnonzero(half != 1))
        for seen in (scaled[:, places],)
    ]
    return Lines(centre, scale, np.asarray(slopes))


def _line(scaled: Singles, target: Singles, weight: Singles, level: float) -> Floats:
    """Iteratively reweighted least squares: the weighted square of a residual is its pinball loss."""
    ridge = RIDGE_SAMPLES * float((weight**2).sum()) / float(weight.sum()) ** 2
    slopes = np.arange(1, len(scaled))
    above, below, least = np.float32(level), np.float32(1 - level), np.float32(RESIDUAL_MIN)
    now: Singles = weight
    result: Floats = np.zeros(len(scaled))
    loaded = np.empty_like(scaled)
    for _ in range(ROUNDS):
        np.multiply(scaled, now, out=loaded)
        normal = (loaded @ scaled.T).astype(np.float64)
        normal[slopes, slopes] += ridge * float(now.sum())
        normal[0, 0] += 1e-9
        result = np.asarray(np.linalg.solve(normal, loaded @ target), dtype=np.float64)
        residual = target - result.astype(np.float32) @ scaled
        loss = np.where(residual > 0, above, below) / np.maximum(np.abs(residual), least)
        now = np.asarray(weight * loss, dtype=np.float32)
    return result
