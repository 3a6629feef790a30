"""Theory section 4: clocks."""

import torch
from planting import fault

from ddlib.schedules import Geometric, Linear, Polynomial, Schedule


@fault("rate = -alpha'/alpha > 0")
def the_derivative_has_the_wrong_sign(patch):
    class Broken(Linear):
        def alpha_prime(self, t):
            return torch.ones_like(t)

    return Broken()


@fault("rate = -alpha'/alpha")
def the_rate_is_not_divided_by_alpha(patch):
    class Broken(Linear):
        def rate(self, t):
            return torch.ones_like(t)

    return Broken()


@fault("alpha = (1-t)^power")
def the_rate_forgets_the_power(patch):
    class Broken(Polynomial):
        def rate(self, t):
            return 1 / (1 - t)

    return Broken(2.0)


@fault("hazard = -log alpha")
def the_hazard_is_one_minus_alpha(patch):
    class Broken(Linear):
        def hazard(self, t):
            return 1 - self.alpha(t)

    return Broken()


@fault("hazard = -log1p(-t)")
def the_hazard_cancels_at_small_t(patch):
    class Broken(Linear):
        def hazard(self, t):
            return -torch.log(1 - t)

    return Broken()


@fault("inverse(alpha(t)) = t")
def the_inverse_is_that_of_another_power(patch):
    class Broken(Polynomial):
        def inverse(self, alpha):
            return 1 - alpha

    return Broken(2.0)


@fault("alpha(0) = 1")
def the_clock_starts_late(patch):
    class Broken(Schedule):
        def alpha(self, t, xp=torch):
            return 0.98 * (1 - t)

    return Broken()


@fault("alpha(1) = 0")
def the_clock_does_not_arrive(patch):
    class Broken(Schedule):
        def alpha(self, t, xp=torch):
            return 1 - 0.99 * t

    return Broken()


@fault("alpha lies in [0, 1]")
def the_clock_runs_below_zero(patch):
    class Broken(Schedule):
        def alpha(self, t, xp=torch):
            return 1 - 1.4 * t

    return Broken()


@fault("alpha decreases")
def the_clock_runs_back_for_a_while(patch):
    class Broken(Schedule):
        def alpha(self, t, xp=torch):
            return 1 - t + 0.2 * xp.sin(4 * t * 3.141592653589793)

    return Broken()


@fault("precision follows the arguments")
def the_clock_answers_in_float64(patch):
    class Broken(Linear):
        def rate(self, t):
            return 1 / (1 - t.double())

    return Broken()


@fault("rate = log(sigma_max/sigma_min) sigma(t)")
def the_geometric_rate_lacks_its_logarithm(patch):
    class Broken(Geometric):
        def rate(self, t):
            return self.hazard(t)

    return Broken()
