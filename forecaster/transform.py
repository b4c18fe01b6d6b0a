"""The scale on which models work: logarithmic for large demand, nearly linear for small.

Promises: monotone both ways, so a quantile stays that quantile; `back` returns finite demand >= 0.
Refuses: nothing.
Called by: `forecaster.ensemble` and `forecaster.events`.
"""

from dataclasses import dataclass

import numpy as np

from forecaster.types import Floats

# exp(30) times any unit is beyond every demand a service can see; it keeps `back` finite.
Z_MAX = 30.0


@dataclass(frozen=True, slots=True)
class Transform:
    """z = log(y / unit + offset).

    Attributes:
        unit: Mean demand of the history.
        offset: Below this share of the mean, differences count as additive (counting noise, zeros).
    """

    unit: float
    offset: float

    def forward(self, y: Floats) -> Floats:
        """Return transformed demand; NaN stays NaN."""
        return np.log(y / self.unit + self.offset)

    def back(self, z: Floats) -> Floats:
        """Return demand, >= 0."""
        return np.maximum(np.exp(np.minimum(z, Z_MAX)) - self.offset, 0.0) * self.unit
