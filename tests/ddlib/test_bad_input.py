"""Every bad input is refused by name, value and rule, with the right exception, before anything is touched."""

import math

import pytest
import sympy
import torch

import ddlib as dd
from ddlib.hierarchies import Flat, Hierarchy, Map, Tree
from ddlib.processes import GIDD, Hierarchical, Masked, RateMatrix, Uniform
from ddlib.samplers import Ancestral, FirstHitting
from ddlib.schedules import Geometric, Linear, Polynomial, Schedule, Symbolic
from ddlib.utils import validation as checks
from ddlib.weightings import PerLevel

pytestmark = pytest.mark.usefixtures("as_users_call")

NAN, INF = math.nan, math.inf
MASKED, CLUSTERS, UNIFORM = dd.presets.mdlm(5), dd.presets.hdlm([0, 0, 1, 1, 1]), Uniform(5, Linear())
X, Z, T = torch.tensor([[0, 3, 4]]), torch.tensor([[0, 5, 5]]), torch.tensor([0.5])
LOGITS, LAW, MASK = torch.zeros(1, 3, 5), torch.full((1, 3, 5), 0.2), torch.ones(1, 3, dtype=torch.bool)
META = torch.device("meta")
EDGE = Map(torch.tensor([0, 1, 1]), 2)
WIGGLE = "1 - t + 16 * t**2 * (1 - t)**2 * (2*t - 1)"  # rises around t = 1/2


def ids(*values, dtype=torch.int64):
    return torch.tensor([values], dtype=dtype)


def scores(z, t):
    return torch.zeros(*z.shape, 5)


def nelbo(logits=LOGITS, x=X, z=Z, t=T, process=MASKED, **options):
    return dd.nelbo(process, logits, x, z, t, **options)


def loss(logits=LOGITS, process=MASKED, z=Z, **options):
    return dd.training_loss(process, logits, X, z, T, **options)


def generate(process=MASKED, denoiser=scores, shape=(1, 3), **options):
    usual = {} if "times" in options else {"steps": 4}
    return dd.sample(process, denoiser, shape, **(usual | options))


def keyed(seed=0, step=0, index=None):
    return dd.KeyedGenerator(seed, step, torch.arange(1) if index is None else index)


def clock(formula):
    """A process on a user's own schedule."""
    return Masked(5, type("Mine", (Schedule,), {"alpha": lambda self, t, xp=torch: formula(t)})())


HIERARCHY = [
    (lambda: Tree([[0, 0, 2, 2, 2]]), ValueError, r"parents\[0\].*not surjective.*\[1\]"),
    (lambda: Tree([[0, 0, 1], [0, 2]]), ValueError, r"parents\[1\].*2 children.*3 clusters.*fewer"),
    (lambda: Tree([[0, -1, 1]]), ValueError, r"parents\[0\] holds -1.*>= 0"),
    (lambda: Tree([[0, 1, 10**12]]), ValueError, r"parents\[0\].*3 children.*1000000000001 clusters.*fewer"),
    (lambda: Tree([[0, 1, 2]]), ValueError, r"parents\[0\] maps 3 children to 3 clusters.*fewer"),
    (lambda: Tree([[0.0, 0.0, 1.0]]), TypeError, r"parents\[0\] has dtype torch.float32.*integers"),
    (lambda: Tree([[True, False, True]]), TypeError, r"parents\[0\] has dtype torch.bool.*integers"),
    (lambda: Tree([[[0, 1], [1, 0]]]), ValueError, r"parents\[0\] has shape \(2, 2\).*\(children,\)"),
    (lambda: Tree([[[0, 1], [1]]]), ValueError, r"parents\[0\]"),  # a child of two parents
    (lambda: Tree(["abc"]), TypeError, r"parents\[0\]"),
    (lambda: Tree([[[0, 0, 1]]]), ValueError, r"parents\[0\] has shape \(1, 3\).*did you mean parents\[0\]\[0\]\?"),
    (lambda: Tree([[0, 0, 1], 2]), ValueError, r"parents\[1\] has shape \(\).*\(children,\)"),
    (lambda: Tree([0, 0, 1], vocab_size=4), ValueError, r"parents has 3 entries, must have 4.*mask"),
    (lambda: Tree([0.0, 0.0, 1.0]), TypeError, r"parents has dtype torch.float32.*integers"),
    (lambda: Tree({0: 0, 1: 0, 2: 1}), TypeError, r"parents is a dict.*one vector per edge, or one vector alone"),
    (lambda: Tree(torch.tensor(3)), TypeError, r"parents is a Tensor.*one vector per edge"),
    (lambda: Tree("001"), TypeError, r"parents is a str.*one vector per edge"),
    (lambda: dd.presets.hdlm(3), TypeError, r"parents is a int.*one vector per edge"),
    (lambda: dd.presets.hdlm([[0, 0, 1], [0, 0]]), ValueError, r"parents holds 2 levels of clusters, hdlm has one"),
    (lambda: Tree([]), ValueError, r"parents is empty.*Flat"),
    (lambda: Tree([[]]), (TypeError, ValueError), r"parents\[0\]"),
    (lambda: Tree([[0, 0, 1, 1], [0, 0, 0]]), ValueError, r"parents\[1\] has 3 entries, must have 2"),
    (lambda: Tree([[0, 0, 1, 1]], vocab_size=3), ValueError, r"parents\[0\] has 4 entries, must have 3.*mask"),
    (lambda: Tree([[0, 0, 1]], xi=0.0), ValueError, r"xi of parents\[0\] is 0.0.*\(0, 1\]"),
    (lambda: Tree([[0, 0, 1]], xi=1.5), ValueError, r"xi of parents\[0\] is 1.5.*\(0, 1\]"),
    (lambda: Tree([[0, 0, 1]], xi=NAN), ValueError, r"xi of parents\[0\] is nan.*\(0, 1\]"),
    (lambda: Tree([[0, 0, 1]], xi=True), TypeError, r"xi of parents\[0\] is True.*number in \(0, 1\]"),
    (lambda: Tree([[0, 0, 0]], xi=0.9), ValueError, r"xi of parents\[0\] is 0.9.*single cluster.*must be 1"),
    (lambda: Tree([[0, 0, 1]], xi=[0.9, 0.9, 0.9]), ValueError, r"xi has 3 entries, must have 1"),
    (lambda: Tree([[0, 0, 1]], speed=[1.0]), ValueError, r"speed has 1 entries, must have 2.*mask last"),
    (lambda: Tree([[0, 0, 1]], speed=[0.0, 1.0]), ValueError, r"speed\[0\] is 0.0.*\[0.001, 1000\]"),
    (lambda: Tree([[0, 0, 1]], speed=[1.0, INF]), ValueError, r"speed\[1\] is inf.*\[0.001, 1000\]"),
    (lambda: Flat(0), ValueError, r"vocab_size is 0.*at least 1"),
    (lambda: Flat(2.0), TypeError, r"vocab_size is 2.0.*int"),
    (lambda: Hierarchy([]), ValueError, r"maps is empty.*mask"),
    (lambda: Hierarchy([EDGE]), ValueError, r"maps\[-1\].*2 states.*mask"),
    (lambda: Hierarchy([EDGE, EDGE]), ValueError, r"maps\[0\] leads to 2 clusters, maps\[1\] starts from 3"),
    (lambda: Map(torch.tensor([0, 7]), 2), ValueError, r"parents holds 7.*\[0, 2\)"),
    (lambda: Map(torch.tensor([0, -1]), 2), ValueError, r"parents holds -1"),
]
SCHEDULE = [
    (lambda: clock(lambda t: 1 - t / 2), ValueError, r"Mine: alpha\(1\) is 0.5, must be 0"),
    (lambda: clock(lambda t: 0.9 * (1 - t)), ValueError, r"Mine: alpha\(0\) is 0.9, must be 1"),
    (lambda: clock(lambda t: t * NAN), ValueError, r"Mine: alpha\(0\) is nan.*finite"),
    (lambda: clock(lambda t: (1 - 2 * t).clamp_min(0)), ValueError, r"Mine.*decrease"),
    (lambda: clock(lambda t: 1 - t + 0.2 * torch.sin(6 * math.pi * t)), ValueError, r"Mine: alpha\(.*\[0, 1\]"),
    (lambda: clock(lambda t: eval(WIGGLE)), ValueError, r"Mine: alpha does not decrease after t = 0.3.*strictly"),
    (lambda: Uniform(5, None), TypeError, r"schedule is None.*Schedule"),
    (lambda: Hierarchical([[0, 0, 1]], Linear()), TypeError, r"hierarchy is \[\[0, 0, 1\]\].*Hierarchy"),
    (lambda: Symbolic("t**2"), ValueError, r"t\*\*2 tends to 0 at t = 0, must be 1"),
    (lambda: Symbolic("exp(-t)"), ValueError, r"exp\(-t\) tends to exp\(-1\) at t = 1, must be 0"),
    (lambda: Symbolic(WIGGLE), ValueError, r"Symbolic: alpha does not decrease after t = 0.3.*strictly"),
    (lambda: Symbolic("1 - u"), ValueError, r"'1 - u' holds 'u', must be built from"),
    (lambda: Symbolic("__import__('os')"), ValueError, r"__import__.*must be built from"),
    (lambda: Symbolic("1 -"), ValueError, r"'1 -' cannot be read"),
    (lambda: Symbolic("9**9**9*(1 - t)"), ValueError, r"power 387420489, at most 1000"),
    (lambda: Symbolic("1"), ValueError, r"formula 1 is constant.*decrease from 1 to 0"),
    (lambda: Symbolic("(1 - t)/0"), ValueError, r"formula.*\(1 - t\)/0"),
    (lambda: Symbolic("(1 - t)*exp(exp(exp(exp(9))))"), ValueError, r"formula"),
    (lambda: Symbolic(1 - sympy.Symbol("s")), ValueError, r"symbols \['s'\], must be in t alone"),
    (lambda: Symbolic(3), TypeError, r"formula is 3.*string or a sympy expression"),
    (lambda: Polynomial(0), ValueError, r"power is 0.*\[0.001, 1000\]"),
    (lambda: Polynomial("2"), TypeError, r"power is '2'.*number"),
    (lambda: Geometric(2.0, 1.0), ValueError, r"sigma_min is 2.0.*below sigma_max = 1.0"),
    (lambda: MASKED.sample(X, torch.tensor([1.5])), ValueError, r"t holds 1.5.*\[0, 1\]"),
    (lambda: MASKED.sample(X, torch.tensor([-0.1])), ValueError, r"t holds -0.1.*\[0, 1\]"),
    (lambda: MASKED.sample(X, torch.tensor([NAN])), ValueError, r"t holds nan.*\[0, 1\]"),
    (lambda: MASKED.sample(X, torch.tensor(0.5)), ValueError, r"t has shape \(\).*\(1,\), one time per sequence"),
    (lambda: MASKED.sample(X, torch.tensor([1])), TypeError, r"t has type torch.int64.*floating-point"),
    (lambda: MASKED.sample(X, 0.5), TypeError, r"t has type float.*floating-point tensor"),
    (lambda: MASKED.rate_matrix(2.0), ValueError, r"t holds 2.0.*\[0, 1\]"),
    (lambda: MASKED.rate_matrix(T), ValueError, r"t has shape \(1,\), must be a scalar"),
    (lambda: UNIFORM.transition(0.5, 0.2), ValueError, r"s = 0.5 must be at most t = 0.2"),
    (lambda: CLUSTERS.posterior(LAW, Z, T, T), ValueError, r"s = 0.5 must be below t = 0.5, at \(0,\)"),
    (lambda: GIDD(5, p_uniform=1.0), ValueError, r"p_uniform is 1.0.*\[0, 1\)"),
    (lambda: GIDD(5, p_uniform=0.1, gamma=3.0), ValueError, r"gamma is 3.0.*\(0, 2\].*negative"),
    (lambda: RateMatrix(torch.tensor([[-1.0, 1.0], [0.5, -1.0]]), Linear()), ValueError, r"row 1 sums to -0.5.*0"),
    (lambda: RateMatrix(torch.tensor([[1.0, -1.0], [0.0, 0.0]]), Linear()), ValueError, r"rate -1.0.*>= 0"),
    (lambda: RateMatrix(torch.full((2, 2), NAN), Linear()), ValueError, r"matrix holds NaN.*finite"),
    (lambda: RateMatrix(torch.zeros(2, 3), Linear()), ValueError, r"matrix has shape \(2, 3\).*square"),
    (lambda: RateMatrix(torch.zeros(0, 0), Linear()), ValueError, r"matrix has shape \(0, 0\)"),
]
TOKENS = [
    (lambda: nelbo(x=ids(0, 3, 5)), ValueError, r"x holds 5.*words in \[0, 5\)"),
    (lambda: nelbo(x=ids(0, 3, -100)), ValueError, r"x holds -100.*words in \[0, 5\)"),
    (lambda: MASKED.sample(ids(-1), T), ValueError, r"x holds -1.*words in \[0, 5\)"),
    (lambda: nelbo(z=ids(0, 6, 5)), ValueError, r"z holds 6.*states in \[0, 6\)"),
    (lambda: nelbo(z=ids(1, 5, 5)), ValueError, r"z\[0, 0\] = 1 .*x\[0, 0\] = 0 at t = 0.5.*process.sample"),
    (lambda: nelbo(z=ids(0, 6, 5), process=CLUSTERS), ValueError, r"z\[0, 2\] = 5 .*x\[0, 2\] = 4"),
    (lambda: loss(z=ids(1, 5, 5)), ValueError, r"z\[0, 0\] = 1 .*process.sample"),
    (lambda: nelbo(z=Z[:, :2]), ValueError, r"z has shape \(1, 2\).*x, \(1, 3\)"),
    (lambda: nelbo(x=X.int()), TypeError, r"x has dtype torch.int32.*torch.int64"),
    (lambda: nelbo(z=Z.double()), TypeError, r"z has dtype torch.float64.*torch.int64"),
    (lambda: MASKED.sample([[0, 1]], T), TypeError, r"x has dtype list.*torch.int64"),
    (lambda: MASKED.sample(X[0], T), ValueError, r"x has shape \(3,\), must be \(B, L\)"),
    (lambda: MASKED.sample(X[:0], T[:0]), ValueError, r"x is empty, shape \(0, 3\)"),
    (lambda: MASKED.sample(X[:, :0], T), ValueError, r"x is empty, shape \(1, 0\)"),
    (lambda: loss(mask=MASK.float()), TypeError, r"mask has dtype torch.float32.*torch.bool"),
    (lambda: loss(mask=~MASK), ValueError, r"mask is False everywhere.*at least one"),
    (lambda: loss(mask=MASK[:, :2]), ValueError, r"mask has shape \(1, 2\), must be \(1, 3\)"),
    (lambda: dd.mean_per_token(torch.ones(1, 3), ~MASK), ValueError, r"mask is False everywhere"),
    (lambda: Uniform(1, Linear()), ValueError, r"vocab_size is 1.*at least 2"),
    (lambda: RateMatrix(torch.tensor([[-1.0, 1.0], [1.0, -1.0]]), Linear(), 3), ValueError, r"num_states is 2.*3"),
]
LOGIT = [
    (lambda: nelbo(LOGITS.index_fill(1, torch.tensor([1]), NAN)), ValueError, r"logits.*\(0, 1\).*NaN"),
    (lambda: nelbo(LOGITS + INF), ValueError, r"logits.*\(0, 0\).*\+inf.*largest is inf"),
    (lambda: nelbo(LOGITS - INF), ValueError, r"logits.*-inf only.*at least one finite"),
    (lambda: loss(LOGITS * NAN), ValueError, r"logits.*NaN"),
    (lambda: generate(denoiser=lambda z, t: scores(z, t) * NAN), ValueError, r"logits.*NaN"),
    (lambda: generate(temperature=0.0, denoiser=lambda z, t: scores(z, t) * NAN), ValueError, r"logits.*NaN"),
    (lambda: nelbo(torch.zeros(1, 3, 6)), ValueError, r"logits has 6 columns.*vocab_size 5.*no mask"),
    (lambda: generate(denoiser=lambda z, t: torch.zeros(*z.shape, 6)), ValueError, r"logits has 6 columns"),
    (lambda: nelbo(LOGITS[0]), ValueError, r"logits has shape \(3, 5\).*\(B, L, V\) = \(1, 3, 5\)"),
    (lambda: nelbo(LOGITS.long()), TypeError, r"logits has type torch.int64.*floating-point"),
    (lambda: generate(denoiser=lambda z, t: (scores(z, t),)), TypeError, r"logits has type tuple.*tensor"),
    (lambda: nelbo(method="closed"), ValueError, r"method is 'closed'.*'auto', 'generic'"),
    (lambda: nelbo(parameterization="x0"), ValueError, r"parameterization is 'x0'.*'cavity', 'posterior'"),
    (lambda: CLUSTERS.posterior(LAW[..., :4], Z, T, T / 2), ValueError, r"p has shape \(1, 3, 4\).*\(1, 3, 5\)"),
    (lambda: dd.weightings.Clip(1.0, low=2.0), ValueError, r"low is 2.0, high 1.0.*low <= high"),
    (lambda: dd.weightings.Clip(NAN), ValueError, r"low is 0.0, high nan"),
    (lambda: dd.weightings.Clip("2"), TypeError, r"high is '2', must be a number"),
    (lambda: dd.weightings.Clip((0.0, 2.0)), TypeError, r"high is \(0.0, 2.0\), must be a number"),
    (lambda: loss(weighting=2.0), TypeError, r"weighting is 2.0, must be a .*Weighting such as Clip\(2.0\)"),
    (lambda: loss(weighting=(0.0, 2.0)), TypeError, r"weighting is \(0.0, 2.0\), must be a .*Weighting"),
    (
        lambda: loss(weighting=dd.weightings.Dynamic()),
        TypeError,
        r"Dynamic.* needs the mixing schedule of GIDD, .*none",
    ),
    (lambda: dd.weightings.Dynamic(0.0), ValueError, r"high is 0.0"),
    (lambda: dd.weightings.Constant(-1.0), ValueError, r"value is -1.0"),
    (lambda: dd.weightings.Optimal(0), ValueError, r"length is 0, must be at least 1"),
    (lambda: dd.weightings.PerLevel(2.0), TypeError, r"factors is 2.0, must be a list of numbers"),
    (lambda: dd.weightings.PerLevel([]), ValueError, r"factors is empty"),
    (lambda: dd.weightings.PerLevel([1.0], 2.0), TypeError, r"weighting is 2.0, must be a .*Weighting or None"),
    (lambda: loss(mode="edges", edge_weights=[1.0, 2.0]), ValueError, r"edge_weights has 2 entries, must have 1"),
    (lambda: loss(mode="edges", edge_weights=1.0), TypeError, r"edge_weights is 1.0, must be 1 numbers, one per edge"),
    (lambda: loss(mode="edges", edge_weights=[-1.0]), ValueError, r"edge_weights\[0\] is -1.0"),
    (lambda: loss(mode="edges", edge_weights=[0.0]), ValueError, r"edge_weights is \[0.0\].*not 0"),
    (
        lambda: loss(mode="hard", edge_weights=[1.0]),
        ValueError,
        r"edge_weights is \[1.0\], mode 'hard': only mode='edges'",
    ),
    (
        lambda: loss(process=UNIFORM, z=X, mode="edges"),
        TypeError,
        r"mode is 'edges', which Uniform .*must be 'standard'",
    ),
    (lambda: loss(mode="soft"), ValueError, r"mode is 'soft'.*'standard', 'hard'"),
    (lambda: loss(process=UNIFORM, z=X, mode="hard"), TypeError, r"mode is 'hard', which Uniform .*must be 'standard'"),
    (lambda: loss(process=UNIFORM, z=X, weighting=PerLevel([1.0])), TypeError, r"factors.*Uniform has words alone"),
    (lambda: loss(weighting=PerLevel([1.0, 2.0])), ValueError, r"factors has 2 entries, must have 1"),
    (lambda: PerLevel([-1.0]), ValueError, r"factors\[0\] is -1.0"),
    (lambda: loss(reduction="sum"), ValueError, r"reduction is 'sum'.*'mean' or 'none'"),
]
DEVICE = [
    (lambda: nelbo(z=Z.to(META)), ValueError, r"one device.*x on cpu, z on meta"),
    (lambda: nelbo(x=X.to(META)), ValueError, r"one device.*x on meta"),
    (lambda: MASKED.sample(X, T.to(META)), ValueError, r"one device.*t on meta"),
    (lambda: nelbo(process=dd.presets.mdlm(5).to(META)), ValueError, r"one device.*process on meta"),
    (lambda: nelbo(process=dd.presets.gidd(5, 0.2).to(META)), ValueError, r"one device.*process on meta"),
    (lambda: nelbo(LOGITS.to(META)), ValueError, r"one device.*logits on meta"),
    (lambda: loss(mask=MASK.to(META), count_padding=False), ValueError, r"one device.*mask on meta"),
    (lambda: CLUSTERS.posterior(LAW.to(META), Z, T, T / 2), ValueError, r"one device.*p on meta"),
    (lambda: MASKED.sample(X, T, keyed(index=torch.arange(1).to(META))), ValueError, r"generator is on meta.*cpu"),
    (lambda: generate(generator=keyed(index=torch.arange(1).to(META))), ValueError, r"generator is on meta.*cpu"),
    (lambda: generate(device="meta"), ValueError, r"one device.*process on cpu"),
    (lambda: MASKED.sample(X, T, 5), TypeError, r"generator is 5"),
    (lambda: MASKED.sample(X, T, keyed(index=torch.arange(2))), ValueError, r"shape is \(1, 3\).*2 examples"),
    (lambda: keyed(seed=-1), ValueError, r"seed is -1.*at least 0"),
    (lambda: keyed(seed=2**63), ValueError, r"seed is 9223372036854775808.*2\^63"),
    (lambda: keyed(step=1.5), TypeError, r"step is 1.5.*int"),
    (lambda: keyed(index=torch.tensor([3, -2])), ValueError, r"index holds -2.*>= 0"),
    (lambda: keyed(index=[0]), TypeError, r"index must be a torch.int64 tensor"),
    (lambda: keyed(index=ids(0)), ValueError, r"index has shape \(1, 1\).*\(B,\)"),
    (lambda: dd.sample_times(0), ValueError, r"n is 0.*at least 1"),
    (lambda: dd.sample_times(3, "sobol"), ValueError, r"method is 'sobol'.*'iid', 'stratified', 'antithetic'"),
    (lambda: dd.sample_times(3, generator=keyed()), ValueError, r"n is 3.*the 1 examples"),
    (lambda: dd.sample_times(3, interval=(0.5, 0.5)), ValueError, r"interval is \(0.5, 0.5\).*low < high"),
    (lambda: dd.sample_times(3, interval=(0.0, 1.1)), ValueError, r"interval is \(0.0, 1.1\).*high <= 1"),
    (lambda: dd.bound(MASKED, scores, X, interval=(NAN, 1.0)), ValueError, r"interval is \(nan, 1.0\)"),
]
SAMPLER = [
    (lambda: generate(steps=0), ValueError, r"steps is 0.*at least 1"),
    (lambda: generate(steps=1.5), TypeError, r"steps is 1.5.*int"),
    (lambda: generate(steps=True), TypeError, r"steps is True.*int"),
    (lambda: generate(shape=(3,)), ValueError, r"shape is \(3,\), must be \(B, L\)"),
    (lambda: generate(shape=(0, 3)), ValueError, r"shape's B is 0.*at least 1"),
    (lambda: generate(temperature=-1.0), ValueError, r"temperature is -1.0.*>= 0"),
    (lambda: generate(temperature=NAN), ValueError, r"temperature is nan.*>= 0"),
    (lambda: generate(top_p=0.0), ValueError, r"top_p is 0.0.*\(0, 1\]"),
    (lambda: generate(top_p=1.1), ValueError, r"top_p is 1.1.*\(0, 1\]"),
    (lambda: generate(times=torch.tensor([0.0, 1.0])), ValueError, r"times \[0.0, 1.0\].*strictly decreasing"),
    (lambda: generate(times=torch.tensor([1.0, 0.5, 0.5, 0.0])), ValueError, r"times.*strictly decreasing"),
    (lambda: generate(times=torch.tensor([1.0, NAN, 0.0])), ValueError, r"times.*nan.*strictly decreasing"),
    (lambda: generate(times=torch.tensor([1.0, 0.25])), ValueError, r"times runs 1.0..0.25.*from 1 to 0"),
    (lambda: generate(times=torch.tensor([1.0])), ValueError, r"times has shape \(1,\).*\(steps \+ 1,\)"),
    (lambda: generate(times=[1.0, 0.0]), TypeError, r"times"),
    (lambda: generate(prompt=ids(1, 2, 3, 4)), ValueError, r"prompt has 4 tokens.*only 3"),
    (lambda: generate(prompt=ids(1, 5)), ValueError, r"prompt holds masks.*infill=True"),
    (lambda: generate(CLUSTERS, prompt=ids(1, 5), infill=True), ValueError, r"prompt holds clusters.*mask 7"),
    (lambda: generate(prompt=ids(1, -1)), ValueError, r"prompt holds -1.*\[0, 6\)"),
    (lambda: generate(prompt=ids(1, 6), infill=True), ValueError, r"prompt holds 6.*\[0, 6\)"),
    (lambda: generate(prompt=ids(1, 2).float()), TypeError, r"prompt has dtype torch.float32.*int64"),
    (lambda: generate(prompt=[1, 2]), TypeError, r"prompt"),
    (lambda: generate(prompt=torch.tensor(1)), ValueError, r"prompt has shape \(\)"),
    (lambda: generate(shape=(3, 3), prompt=torch.ones(2, 1).long()), ValueError, r"prompt has shape \(2, 1\)"),
    (lambda: generate(sampler=Ancestral), TypeError, r"sampler is <class.*Ancestral\(\)"),
    (
        lambda: generate(dd.presets.gidd(5, 0.2), sampler=FirstHitting()),
        TypeError,
        r"FirstHitting needs .* levels",
    ),
]
GROUPS = {g: v for g, v in globals().items() if g.isupper() and isinstance(v, list)}


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [pytest.param(*case, id=f"{group}{i}") for group, cases in GROUPS.items() for i, case in enumerate(cases)],
)
def test_refused_by_name_value_and_rule_and_nothing_touched(call, error, message):
    inputs = {k: v for k, v in globals().items() if isinstance(v, torch.Tensor)}
    before = {k: v.clone() for k, v in inputs.items()}
    with pytest.raises(error, match=f"(?s){message}"):
        call()
    assert all(torch.equal(before[k], v) for k, v in inputs.items())


@pytest.mark.parametrize(
    "call",
    [
        lambda g: MASKED.sample(X, torch.tensor([2.0]), g),
        lambda g: UNIFORM.sample(X.int(), T, g),
        lambda g: generate(prompt=ids(7), generator=g),
        lambda g: generate(dd.presets.gidd(5, 0.2), sampler=FirstHitting(), generator=g),
        lambda g: dd.bound(MASKED, scores, ids(-100), g),
        lambda g: dd.sample_times(3, interval=(1.0, 0.0), generator=g),
    ],
)
def test_a_refusal_draws_no_random_number(call):
    generator = torch.Generator().manual_seed(0)
    state = generator.get_state()
    with pytest.raises((TypeError, ValueError)):
        call(generator)
    assert torch.equal(generator.get_state(), state)


def test_good_neighbours_of_the_bad_inputs_pass():
    """Without this, refusing everything would pass the tests above."""
    for process, z in ((MASKED, Z), (CLUSTERS, ids(0, 6, 7)), (UNIFORM, X), (dd.presets.gidd(5, 0.2), Z)):
        assert bool((nelbo(process=process, z=z) >= 0).all())
        assert bool((generate(process) < 5).all())
    assert bool(loss(mask=MASK, weighting=PerLevel([1.0], dd.weightings.Clip(2.0)), mode="hard") > 0)
    assert bool(loss(mode="edges", edge_weights=[1.0]) == loss())
    minus_inf = LOGITS.index_fill(2, torch.tensor([1]), -INF)
    assert bool(nelbo(minus_inf).isfinite().all())
    assert Symbolic("1 - erf(t)/erf(1)").alpha(T).item() == pytest.approx(1 - math.erf(0.5) / math.erf(1))


def test_values_are_looked_at_on_the_cpu_or_when_debugging(monkeypatch):
    monkeypatch.setattr(checks, "_debug", False)  # put back afterwards, whatever dd.debug does below
    far, near = torch.zeros(2, device=META), torch.zeros(2)
    assert checks.visible(near) and not checks.visible(far)
    checks.check_times("t", torch.full((2,), NAN, device=META), 2)
    checks.check_tokens("x", torch.full((1, 2), -100, device=META), 5)
    with pytest.raises(TypeError, match=r"x has dtype torch.int32"):  # types and shapes cost nothing: always checked
        checks.check_tokens("x", torch.zeros(1, 2, dtype=torch.int32, device=META), 5)
    dd.debug(True)
    assert checks.visible(near) and checks.visible(far)
    dd.debug(False)
    assert checks.visible(near) and not checks.visible(far)


@pytest.mark.slow
def test_nothing_is_looked_at_while_compiling():
    def look(tensor):
        return tensor + (1 if checks.visible(tensor) else 0)

    assert look(T).item() == 1.5 and torch.compile(look, backend="eager", fullgraph=True)(T).item() == 0.5
    compiled = torch.compile(nelbo, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(LOGITS), nelbo(LOGITS))
    assert bool(compiled(LOGITS * NAN)[0, 1:].isnan().all())
