"""Schedules (theory section 4)."""

import torch
from planting import fault

from ddlib.schedules import Geometric, Linear, Polynomial, Rate, Schedule, rate

fault("rate = -alpha'/alpha > 0", Linear)(
    the_derivative_has_the_wrong_sign=lambda alpha_prime, self, t: torch.ones_like(t)
)
fault("rate = -alpha'/alpha", Linear)(
    the_rate_is_not_divided_by_alpha=lambda rate, self, t: torch.ones_like(t)
)
fault("alpha = (1-t)^power", Polynomial, 2.0)(
    the_rate_omits_the_power=lambda rate, self, t: 1 / (1 - t)
)
fault("hazard = -log alpha", Linear)(
    the_hazard_is_one_minus_alpha=lambda hazard, self, t: 1 - self.alpha(t)
)
fault("hazard = -log1p(-t)", Linear)(
    the_hazard_loses_precision_at_small_t=lambda hazard, self, t: -torch.log(1 - t)
)
fault("inverse(alpha(t)) = t", Polynomial, 2.0)(
    the_inverse_is_that_of_power_1=lambda inverse, self, alpha: 1 - alpha
)
fault("time_of(-log alpha(t)) = t", Linear)(
    the_time_of_a_hazard_is_a_tenth_too_early=lambda time_of, self, hazard: 0.9 * time_of(hazard)
)
fault("alpha(0) = 1", Schedule)(
    alpha_is_below_1_at_time_0=lambda alpha, self, t, xp=torch: 0.98 * (1 - t)
)
fault("alpha(1) = 0", Schedule)(
    alpha_is_above_0_at_time_1=lambda alpha, self, t, xp=torch: 1 - 0.99 * t
)
fault("alpha lies in [0, 1]", Schedule)(
    alpha_becomes_negative=lambda alpha, self, t, xp=torch: 1 - 1.4 * t
)
fault("alpha decreases", Schedule)(
    alpha_is_not_monotone=lambda alpha, self, t, xp=torch: (
        1 - t + 0.2 * xp.sin(4 * t * 3.141592653589793)
    )
)
fault("alpha is continuous", Schedule)(
    alpha_jumps=lambda alpha, self, t, xp=torch: (1 - t) * (1 - 0.5 * (t > 0.3))
)
fault("results have the precision of the arguments", Linear)(
    the_rate_is_always_float64=lambda rate, self, t: 1 / (1 - t.double())
)
fault("rate = log(sigma_max/sigma_min) sigma(t)", Geometric)(
    the_rate_of_the_geometric_schedule_is_its_hazard=lambda rate, self, t: self.hazard(t)
)


@fault("the hazard is the integral of the rate")
def the_panels_of_a_rate_with_a_narrow_peak_are_not_halved(patch):
    patch.setattr(rate, "_ERROR", float("inf"))
    return Rate("1/(1 - t) + 500*exp(-((t - 0.3)/0.001)**2)")
