"""Mistakes of callers that gave wrong numbers without an error or a warning."""

import copy
import functools

import pytest
import torch

import ddlib as dd
from ddlib.paces import Pace
from ddlib.times import TimeDensity
from ddlib.utils.validation import UsageWarning
from ddlib_models import DiT, FieldDiT

V = 6
MASKS = dd.presets.mdlm(V)
X = torch.arange(24).view(4, 6) % V
KEPT = torch.arange(6) < torch.tensor([6, 4, 3, 2])[:, None]


def keyed(step=0):
    return dd.KeyedGenerator(0, step, torch.arange(len(X)))


def flat(z, t):
    return torch.zeros(*z.shape, V)


# ---- totals of masked bounds


def test_a_tally_of_a_bound_counts_the_tokens_of_its_mask():
    bound = dd.bound(MASKS, flat, X, keyed(), mask=KEPT)
    tally = dd.Tally()
    tally.add(bound)
    assert tally.per_token.value == pytest.approx(bound.per_token.value)
    assert tally.per_token.standard_error == pytest.approx(bound.per_token.standard_error)
    assert tally.per_token.method == bound.per_token.method
    assert tally.per_token.caveat == tally.perplexity.caveat == bound.per_token.caveat != ""


@pytest.mark.parametrize("argument", ["mask", "times"])
def test_a_tally_refuses_a_second_mask_or_times(argument):
    bound = dd.bound(MASKS, flat, X, keyed(), mask=KEPT)
    values = {"mask": KEPT, "times": torch.rand(4)}
    with pytest.raises(ValueError, match="mask or times is given with a bound"):
        dd.Tally().add(bound, **{argument: values[argument]})


# ---- meaning of logits behind a wrapper


class Posterior(torch.nn.Module):
    parameterization = "posterior"

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(V + 1, V)

    def forward(self, z, t):
        return self.table(z)


NETWORK = Posterior().eval().requires_grad_(False)
WRAPPED = {
    "average": lambda network: torch.optim.swa_utils.AveragedModel(network).eval(),
    "several devices": torch.nn.DataParallel,
    "closure": lambda network: lambda z, t: network(z, t),
    "method": lambda network: network.forward,
    "partial": lambda network: functools.partial(network),
}


def by_global_name(z, t):
    return NETWORK(z, t)


@pytest.mark.parametrize("kind", WRAPPED)
def test_a_wrapped_network_of_posterior_logits_needs_a_parameterization(kind):
    denoiser = WRAPPED[kind](NETWORK)
    with pytest.raises(ValueError, match="does not state its parameterization, and calls Post"):
        dd.bound(MASKS, denoiser, X)
    stated = dd.bound(MASKS, denoiser, X, keyed(), parameterization="posterior")
    assert torch.equal(stated.total, dd.bound(MASKS, NETWORK, X, keyed()).total)


def test_a_function_that_calls_a_network_by_a_global_name_is_one_that_wraps_it():
    with pytest.raises(ValueError, match="by_global_name does not state its parameterization"):
        dd.sample(MASKS, by_global_name, (1, 4), steps=2)


class Dropping(torch.nn.Module):
    def forward(self, z, t):
        return torch.nn.functional.dropout(flat(z, t) + 1, training=self.training)


DROPPING = Dropping()


def test_a_network_in_train_mode_behind_a_function_is_noticed():
    with pytest.warns(UsageWarning, match="is in train mode and draws random numbers"):
        dd.bound(MASKS, lambda z, t: DROPPING(z, t), X)


# ---- networks for other parts of the process


def test_a_bound_warns_of_a_network_with_blocks_that_gets_noise_in_earlier_ones():
    network = DiT(V + 1, V, 16, 1, 1, block_size=2).eval().requires_grad_(False)
    with pytest.warns(UsageWarning, match="has blocks of 2: it was trained with clean tokens"):
        dd.bound(MASKS, network, X)


def test_a_bound_refuses_children_of_another_tree():
    parents = [torch.tensor([0, 0, 1, 1, 2, 2])]
    others = [torch.tensor([0, 1, 1, 2, 2, 0])]
    network = DiT(V + 1, V, 16, 1, 1, tree=parents).eval().requires_grad_(False)
    tree = dd.hierarchies.Tree(others)
    levels = dd.processes.Hierarchical(tree, dd.schedules.Linear())
    with pytest.raises(ValueError, match="the output layer was made for a tree"):
        dd.bound(MASKS, network, X, parameterization=dd.Children(tree))
    wider = DiT(levels.num_states, V, 16, 1, 1, tree=parents).eval().requires_grad_(False)
    with pytest.raises(ValueError, match="the output layer was made for a tree"):
        dd.bound(levels, wider, X, parameterization="children")


def test_a_network_of_fields_in_another_order_is_refused():
    parts = {"letters": dd.presets.mdlm(4), "digits": dd.presets.mdlm(2)}
    product = dd.processes.Product(parts, ["letters", "digits"])
    network = FieldDiT(product.sizes[::-1], 16, 1, 1).eval().requires_grad_(False)
    x = torch.tensor([[3, 1]])
    with pytest.raises(ValueError, match="must be equal, in this order"):
        dd.bound(product, network, x)
    with pytest.raises(ValueError, match="must be equal, in this order"):
        dd.sample(product, network, (1, 2))


# ---- ratios of networks


@pytest.mark.parametrize("alias", [lambda network: network, copy.copy], ids=["same", "shallow"])
def test_a_reference_with_the_parameters_of_the_network_is_noticed(alias):
    network = Posterior()
    with pytest.warns(UsageWarning, match="reference has the parameters of the denoiser"):
        dd.bound_log_ratio(MASKS, network, alias(network), X, seed=0)


# ---- own paces and densities


class Path(Pace):
    def __init__(self, low=0.0, high=1.0, jump=False, resting=0, redrawn=False, slow=1.0):
        self.low, self.high, self.jump, self.resting = low, high, jump, resting
        self.redrawn, self.slow = redrawn, slow

    def times(self, u, chance):
        t = self.low + (self.high - self.low) * u[:, None].expand(chance.shape)
        t = torch.where(t > 0.5, 0.4 + 0.6 * t, 0.4 * t) if self.jump else t
        t = t.clone()
        t[:, : self.resting] = 1.0
        return t ** (1 + torch.rand(())) if self.redrawn else t

    def speeds(self, u, chance):
        return self.slow * super().speeds(u, chance)


PATHS = {
    "ends at 0.5": (dict(high=0.5), "at u = 1 a position has the time 0.5, must be 1"),
    "starts at 0.3": (dict(low=0.3), "at u = 0 a position has the time 0.3, must be 0"),
    "jumps": (dict(jump=True), "integral of the speeds .* differs from 1"),
    "leaves a position out": (dict(resting=1), "at u = 0 a position has the time 1, must be 0"),
    "draws at each call": (dict(redrawn=True), "two calls of times .* differ"),
    "speeds of another path": (dict(slow=0.5), "integral of the speeds .* differs from 1"),
}


def own_times(z, t):
    return flat(z, t)


own_times.own_times = True


@pytest.mark.parametrize("kind", PATHS)
def test_a_pace_that_is_no_path_from_data_to_noise_is_refused(kind):
    arguments, message = PATHS[kind]
    pace = Path(**arguments)
    for _ in range(2):
        with pytest.raises(ValueError, match=message):
            dd.bound(MASKS, own_times, X, pace=pace)
        with pytest.raises(ValueError, match=message):
            dd.sample(MASKS, own_times, (2, 6), steps=4, pace=pace)


@pytest.mark.parametrize("name", dd.registry.built_in("paces"))
@pytest.mark.parametrize("length", [4, 64])
def test_paces_of_the_library_are_paths(name, length):
    for pace in dd.registry.get("paces", name).examples():
        try:
            pace.parts(length)
        except ValueError:
            continue  # a length that the pace does not support
        pace.check(length)


class Skewed(TimeDensity):
    def density(self, t):
        return 2 * t + 1e-3 * (1 - 2 * t)

    def cumulative(self, t):
        return t**2 + 1e-3 * (t - t**2)

    def inverse(self, u):
        return u


def test_a_density_with_the_inverse_of_another_is_refused():
    with pytest.raises(ValueError, match=r"Skewed: inverse\(0.0078125\) is 0.0078125, where"):
        dd.sample_times(4, density=Skewed())


# ---- controls and prompts


class Overwriting(dd.controls.Control):
    def after_step(self, run, state, memo, k):
        return run, state._replace(z=state.z.clone().index_fill_(1, torch.tensor([0]), 0)), memo


class Misspelt(dd.controls.Control):
    def on_step(self, run, state, memo, k):
        raise AssertionError("never called")


def test_a_control_that_overrides_nothing_is_refused():
    with pytest.raises(
        TypeError, match=r"no effect: its class overrides none of offers, .* finish"
    ):
        dd.sample(MASKS, flat, (1, 4), steps=2, controls=[Misspelt()])


class Finishing(dd.controls.Control):
    def __init__(self, change):
        self.change = change

    def finish(self, run, tokens):
        return self.change(tokens)


def sampled(control):
    prompt = torch.tensor([3, 4])
    return dd.sample(MASKS, flat, (2, 6), steps=2, prompt=prompt, controls=[control])


def test_a_control_that_overwrites_given_tokens_is_refused():
    with pytest.raises(ValueError, match="has changed the token given at position 0 of row 0"):
        sampled(Overwriting())
    with pytest.raises(ValueError, match="has changed the token given at position 1 of row 0"):
        sampled(Finishing(lambda tokens: tokens.flip(1)[:, [0, 0, 1, 2, 3, 4]] * 0 + 3))


def test_a_control_that_returns_no_tokens_is_refused():
    with pytest.raises(ValueError, match=r"finish of .* holds \d+, must be tokens in"):
        sampled(Finishing(lambda tokens: tokens + 10))
    with pytest.raises(TypeError, match=r"has dtype torch.float32, must be a torch.int64"):
        sampled(Finishing(lambda tokens: tokens.float()))


def test_a_prompt_of_an_id_that_is_no_token_is_refused():
    """As the id of a tokenizer's mask, in a prompt that leaves nothing to draw."""

    def network(z, t):
        return flat(z, t)

    network.undrawn = (2, 5)
    with pytest.raises(ValueError, match="prompt holds the id 5 at position 5 of row 0"):
        dd.sample(MASKS, network, (1, 6), prompt=torch.tensor([0, 1, 3, 4, 1, 5]))
    prompt = dd.Given(torch.full((1, 6), 5), torch.zeros(1, 6, dtype=torch.bool))
    dd.sample(MASKS, network, (1, 6), steps=2, prompt=prompt)


# ---- own processes


class Chain(dd.processes.ForwardProcess):
    """Masks at a constant rate, with one mistake."""

    def __init__(self, mistake=""):
        super().__init__(3, 4)
        self.mistake = mistake

    def rate_matrix(self, t):
        rates = torch.zeros(4, 4, dtype=torch.float64)
        rates[:3, 3] = 5.0
        rates[:3, :3] = -5.0 * torch.eye(3, dtype=torch.float64)
        return rates / 2 if self.mistake == "half" else rates

    def transition(self, s, t):
        stay = torch.exp(-5 * (torch.as_tensor(t, dtype=torch.float64) - s))
        result = torch.zeros(4, 4, dtype=torch.float64)
        result[:3, :3] = stay * torch.eye(3, dtype=torch.float64)
        result[:3, 3] = 1 - stay
        result[3, 3] = 1
        if self.mistake == "leak":
            result[:, 3] = 0.9 * result[:, 3]
        return result.T if self.mistake == "transposed" else result


CHAINS = {
    "half": "must be equal; dd.verify checks the rest",
    "leak": "row 3 of transition.* sums to 0.9 .*must be distributions",
    "transposed": "row 3 of transition.* must be distributions",
}


@pytest.mark.parametrize("mistake", CHAINS)
def test_a_process_whose_matrices_are_no_chain_is_refused(mistake):
    process = Chain(mistake)
    x = torch.zeros(2, 3, dtype=torch.int64)

    def network(z, t):
        return torch.zeros(*z.shape, 3)

    for call in (
        lambda: dd.bound(process, network, x),
        lambda: dd.sample(process, network, (2, 3)),
        lambda: dd.training_loss(process, network(x, None), x, x, torch.rand(2)),
    ):
        with pytest.raises(ValueError, match=CHAINS[mistake]):
            call()
    assert dd.bound(Chain(), network, x).total.isfinite().all()


# ---- parts that lack something


class Halving(dd.weightings.Weighting):
    def __call__(self, process, weight, x, z, t):
        return 0.5


def test_a_weighting_that_returns_a_number_is_refused():
    z = MASKS.sample(X, torch.full((4,), 0.5))
    with pytest.raises(TypeError, match=r"returns a float, must return a tensor"):
        dd.training_loss(MASKS, flat(z, None), X, z, torch.full((4,), 0.5), Halving())


def test_a_guidance_without_a_strength_outside_is_refused():
    class Plain(dd.guidance.Guidance):
        parts = ("denoiser",)
        special_cases = steer = examples = None

    with pytest.raises(TypeError, match="Plain has no attribute outside, must set it"):
        Plain(MASKS, 1.0, "tokens", (0, 1), None)
