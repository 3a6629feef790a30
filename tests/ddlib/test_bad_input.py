"""Every bad input is refused by name, value and rule, with the right exception, before anything is
touched.
"""

import inspect
import math

import pytest
import torch
from refusals import NAMES, rows

import ddlib as dd
from ddlib.hierarchies import Map
from ddlib.processes import Masked, Uniform
from ddlib.samplers import FirstHitting
from ddlib.schedules import Linear, Schedule, Symbolic
from ddlib.utils import validation as checks
from ddlib.weightings import PerLevel

pytestmark = pytest.mark.usefixtures("as_users_call")

NAN = math.nan
INF = math.inf
MASKED = dd.presets.mdlm(5)
CLUSTERS = dd.presets.hdlm([0, 0, 1, 1, 1])
UNIFORM = Uniform(5, Linear())
X = torch.tensor([[0, 3, 4]])
Z = torch.tensor([[0, 5, 5]])
T = torch.tensor([0.5])
LOGITS = torch.zeros(1, 3, 5)
PROBS = torch.full((1, 3, 5), 0.2)
MASK = torch.ones(1, 3, dtype=torch.bool)
META = torch.device("meta")
EDGE = Map(torch.tensor([0, 1, 1]), 2)
WIGGLE = "1 - t + 16 * t**2 * (1 - t)**2 * (2*t - 1)"  # rises around t = 1/2


def ids(*values, dtype=torch.int64):
    return torch.tensor([values], dtype=dtype)


def scores(z, t):
    return torch.zeros(*z.shape, 5)


def narrow(z, t):
    """A network whose table has no row for the mask."""
    return torch.eye(5)[z]


def broken(z, t):
    """A network that fails at every state."""
    return torch.eye(5)[z + 9]


def nelbo(logits=LOGITS, x=X, z=Z, t=T, process=MASKED, **options):
    return dd.nelbo(process, logits, x, z, t, **options)


def loss(logits=LOGITS, process=MASKED, z=Z, **options):
    return dd.training_loss(process, logits, X, z, T, **options)


def generate(process=MASKED, denoiser=scores, shape=(1, 3), **options):
    usual = {} if "times" in options else {"steps": 4}
    return dd.sample(process, denoiser, shape, **(usual | options))


def keyed(seed=0, step=0, index=None):
    return dd.KeyedGenerator(seed, step, torch.arange(1) if index is None else index)


def schedule(formula):
    """A process on a user's own schedule."""
    return Masked(5, type("Mine", (Schedule,), {"alpha": lambda self, t, xp=torch: formula(t)})())


HIERARCHY = r"""
    Tree([[0, 0, 2, 2, 2]]) | ValueError | parents\[0\].*not surjective.*\[1\]
    Tree([[0, 0, 1], [0, 2]]) | ValueError | parents\[1\].*2 children.*3 clusters.*fewer
    Tree([[0, -1, 1]]) | ValueError | parents\[0\] holds -1.*>= 0
    Tree([[0, 1, 10**12]]) | ValueError | parents\[0\].*3 children.*1000000000001 clusters.*fewer
    Tree([[0, 1, 2]]) | ValueError | parents\[0\] maps 3 children to 3 clusters.*fewer
    Tree([[0.0, 0.0, 1.0]]) | TypeError | parents\[0\] has dtype torch.float32.*integers
    Tree([[True, False, True]]) | TypeError | parents\[0\] has dtype torch.bool.*integers
    Tree([[[0, 1], [1, 0]]]) | ValueError | parents\[0\] has shape \(2, 2\).*\(children,\)
    Tree([[[0, 1], [1]]]) | ValueError | parents\[0\]  # a child of two parents
    Tree(["abc"]) | TypeError | parents\[0\]
    Tree([[[0, 0, 1]]]) | ValueError
        | parents\[0\] has shape \(1, 3\).*did you mean parents\[0\]\[0\]\?
    Tree([[0, 0, 1], 2]) | ValueError | parents\[1\] has shape \(\).*\(children,\)
    Tree([0, 0, 1], vocab_size=4) | ValueError | parents has 3 entries, must have 4.*mask
    Tree([0.0, 0.0, 1.0]) | TypeError | parents has dtype torch.float32.*integers
    Tree({0: 0, 1: 0, 2: 1}) | TypeError
        | parents is a dict.*one vector per edge, or a single vector
    Tree(torch.tensor(3)) | TypeError | parents is a Tensor.*one vector per edge
    Tree("001") | TypeError | parents is a str.*one vector per edge
    dd.presets.hdlm(["a", "b", "a"]) | TypeError
        | parents\[0\] is 'a', must be an integer, the cluster index of a child
    dd.presets.hdlm([0, 0, 1], gamma=-1) | ValueError | gamma is -1, must be in \[0.001, 1000\]
    dd.presets.hdlm(3) | TypeError | parents is a int.*one vector per edge
    dd.presets.hdlm([[0, 0, 1], [0, 0]]) | ValueError
        | parents holds 2 levels of clusters, must hold one
    Tree([]) | ValueError | parents is empty.*Flat
    Tree([[]]) | (TypeError, ValueError) | parents\[0\]
    Tree([[0, 0, 1, 1], [0, 0, 0]]) | ValueError | parents\[1\] has 3 entries, must have 2
    Tree([[0, 0, 1, 1]], vocab_size=3) | ValueError
        | parents\[0\] has 4 entries, must have 3: one per token \(the mask
    Tree([[0, 0, 1]], xi=0.0) | ValueError | xi of parents\[0\] is 0.0.*\(0, 1\]
    Tree([[0, 0, 1]], xi=1.5) | ValueError | xi of parents\[0\] is 1.5.*\(0, 1\]
    Tree([[0, 0, 1]], xi=NAN) | ValueError | xi of parents\[0\] is nan.*\(0, 1\]
    Tree([[0, 0, 1]], xi=torch.tensor(0.9)) | TypeError
        | xi of parents\[0\] is tensor\(0.9000\), must be a number
    Tree([[0, 0, 1]], xi=True) | TypeError | xi of parents\[0\] is True.*number in \(0, 1\]
    Tree([[0, 0, 0]], xi=0.9) | ValueError | xi of parents\[0\] is 0.9.*single cluster.*must be 1
    Tree([[0, 0, 1]], xi=[0.9, 0.9, 0.9]) | ValueError | xi has 3 entries, must have 1
    Tree([[0, 0, 1]], speed=2.0) | TypeError | speed is 2.0, must be a list of numbers
    Tree([[0, 0, 1]], speed=[1.0]) | ValueError | speed has 1 entries, must have 2.*mask last
    Tree([[0, 0, 1]], speed=[0.0, 1.0]) | ValueError | speed\[0\] is 0.0.*\[0.001, 1000\]
    Tree([[0, 0, 1]], speed=[1.0, INF]) | ValueError | speed\[1\] is inf.*\[0.001, 1000\]
    Tree([[0, 0, 1]], speed=[1.0, -2.0]) | ValueError | speed\[1\] is -2.0.*\[0.001, 1000\]
    Tree([[0, 0, 1]], speed=[NAN, 1.0]) | ValueError | speed\[0\] is nan.*\[0.001, 1000\]
    Tree([[0, 0, 1]], speed=[1.0, 1.0, 1.0]) | ValueError | speed has 3 entries, must have 2
    Tree([[0, 0, 1]], speed=["fast", 1.0]) | TypeError | speed\[0\] is 'fast', must be a number
    Flat(0) | ValueError | vocab_size is 0.*at least 1
    Flat(2.0) | TypeError | vocab_size is 2.0.*int
    Hierarchy([]) | ValueError | maps is empty.*mask
    Hierarchy([EDGE]) | ValueError | maps\[-1\].*2 states.*mask
    Hierarchy([EDGE, EDGE]) | ValueError | maps\[0\] leads to 2 clusters, maps\[1\] starts from 3
    Map(torch.tensor([0, 7]), 2) | ValueError | parents holds 7.*\[0, 2\)
    Map(torch.tensor([0, -1]), 2) | ValueError | parents holds -1
"""
SCHEDULE = r"""
    schedule(lambda t: 1 - t.numpy()) | TypeError | Mine: alpha returns ndarray, must .* tensor
    schedule(lambda t: 1 - t / 2) | ValueError | Mine: alpha\(1\) is 0.5, must be 0
    schedule(lambda t: 0.9 * (1 - t)) | ValueError | Mine: alpha\(0\) is 0.9, must be 1
    schedule(lambda t: t * NAN) | ValueError | Mine: alpha\(0\) is nan.*finite
    schedule(lambda t: (1 - 2 * t).clamp_min(0)) | ValueError | Mine.*decrease
    schedule(lambda t: 1 - t + 0.2 * torch.sin(6 * math.pi * t)) | ValueError
        | Mine: alpha\(.*\[0, 1\]
    schedule(lambda t: eval(WIGGLE)) | ValueError
        | Mine: alpha does not decrease after t = 0.3.*strictly
    Uniform(5, None) | TypeError | schedule is None.*Schedule
    Hierarchical([[0, 0, 1]], Linear()) | TypeError | hierarchy is \[\[0, 0, 1\]\].*Hierarchy
    Symbolic("t**2") | ValueError | t\*\*2 tends to 0 at t = 0, must be 1
    Symbolic("exp(-t)") | ValueError | exp\(-t\) tends to exp\(-1\) at t = 1, must be 0
    Symbolic(WIGGLE) | ValueError | Symbolic: alpha does not decrease after t = 0.3.*strictly
    Symbolic("1 - u") | ValueError | '1 - u' holds 'u', must be built from
    Symbolic("__import__('os')") | ValueError | __import__.*must be built from
    Symbolic("1 -") | ValueError | '1 -' cannot be read
    Symbolic("9**9**9*(1 - t)") | ValueError | exponent 387420489, must be at most 1000
    Symbolic("1") | ValueError | formula 1 is constant.*decrease from 1 to 0
    Symbolic("(1 - t)/0") | ValueError | formula.*\(1 - t\)/0
    Symbolic("(1 - t)*exp(exp(exp(exp(9))))") | ValueError | formula
    Symbolic(1 - sympy.Symbol("s")) | ValueError | symbols \['s'\], must have only t
    Symbolic(3) | TypeError | formula is 3.*string or a sympy expression
    Polynomial(0) | ValueError | power is 0.*\[0.001, 1000\]
    Polynomial("2") | TypeError | power is '2'.*number
    Geometric(2.0, 1.0) | ValueError | sigma_min is 2.0.*below sigma_max = 1.0
    MASKED.sample(X, torch.tensor([1.5])) | ValueError | t holds 1.5.*\[0, 1\]
    MASKED.sample(X, torch.tensor([-0.1])) | ValueError | t holds -0.1.*\[0, 1\]
    MASKED.sample(X, torch.tensor([NAN])) | ValueError | t holds nan.*\[0, 1\]
    MASKED.sample(X, torch.tensor(0.5)) | ValueError
        | t has shape \(\).*\(1,\), one time per sequence
    MASKED.sample(X, torch.tensor([1])) | TypeError | t has type torch.int64.*floating-point
    MASKED.sample(X, 0.5) | TypeError | t has type float.*floating-point tensor
    MASKED.rate_matrix(2.0) | ValueError | t holds 2.0.*\[0, 1\]
    MASKED.rate_matrix(T) | ValueError | t has shape \(1,\), must be a scalar
    UNIFORM.transition(0.5, 0.2) | ValueError | s = 0.5 must be at most t = 0.2
    CLUSTERS.posterior(PROBS, Z, T, T + 0.1) | ValueError
        | s = 0.6.* must be at most t = 0.5, at \(0,\)
    GIDD(5, p_uniform=1.0) | ValueError | p_uniform is 1.0.*\[0, 1\)
    GIDD(5, p_uniform=0.1, gamma=3.0) | ValueError | gamma is 3.0.*\(0, 2\].*negative
    RateMatrix(torch.tensor([[-1.0, 1.0], [0.5, -1.0]]), Linear()) | ValueError
        | row 1 sums to -0.5.*0
    RateMatrix(torch.tensor([[1.0, -1.0], [0.0, 0.0]]), Linear()) | ValueError | rate -1.0.*>= 0
    RateMatrix(torch.tensor([[-1.0, 1.0], [0.0, 0.0]]), Linear()) | ValueError
        | row \[1\].*state the number
    dd.bound(MASKED, LOGITS, X) | TypeError | denoiser is a Tensor, must be callable
    dd.sample(MASKED, LOGITS, (1, 3), steps=2) | TypeError | denoiser is a Tensor, must be callable
    RateMatrix(torch.full((2, 2), NAN), Linear()) | ValueError | matrix holds NaN.*finite
    RateMatrix(torch.zeros(2, 3), Linear()) | ValueError | matrix has shape \(2, 3\).*square
    RateMatrix(torch.zeros(0, 0), Linear()) | ValueError | matrix has shape \(0, 0\)
"""
TOKENS = r"""
    nelbo(x=ids(0, 3, 5)) | ValueError | x holds 5.*tokens in \[0, 5\)
    nelbo(x=ids(0, 3, -100)) | ValueError | x holds -100.*tokens in \[0, 5\)
    MASKED.sample(ids(-1), T) | ValueError | x holds -1.*tokens in \[0, 5\)
    nelbo(z=ids(0, 6, 5)) | ValueError | z holds 6.*states in \[0, 6\)
    nelbo(z=ids(1, 5, 5)) | ValueError | z\[0, 0\] = 1 .*x\[0, 0\] = 0 at t = 0.5.*process.sample
    nelbo(z=ids(0, 6, 5), process=CLUSTERS) | ValueError | z\[0, 2\] = 5 .*x\[0, 2\] = 4
    loss(z=ids(1, 5, 5)) | ValueError | z\[0, 0\] = 1 .*process.sample
    nelbo(z=Z[:, :2]) | ValueError | z has shape \(1, 2\).*x, \(1, 3\)
    nelbo(x=X.int()) | TypeError | x has dtype torch.int32.*torch.int64
    nelbo(z=Z.double()) | TypeError | z has dtype torch.float64.*torch.int64
    MASKED.sample([[0, 1]], T) | TypeError | x has dtype list.*torch.int64
    MASKED.sample(X[0], T) | ValueError | x has shape \(3,\), must be \(B, L\)
    MASKED.sample(X[:0], T[:0]) | ValueError | x is empty, shape \(0, 3\)
    MASKED.sample(X[:, :0], T) | ValueError | x is empty, shape \(1, 0\)
    loss(mask=MASK.float()) | TypeError | mask has dtype torch.float32.*torch.bool
    loss(mask="110") | TypeError | mask has dtype str, must be a torch.bool tensor
    loss(mask=~MASK) | ValueError | mask is False everywhere.*at least one
    loss(mask=MASK[:, :2]) | ValueError | mask has shape \(1, 2\), must be \(1, 3\)
    dd.objective.training.mean_per_token(torch.ones(1, 3), ~MASK) | ValueError | mask is False
    Uniform(1, Linear()) | ValueError | vocab_size is 1.*at least 2
    RateMatrix(torch.tensor([[-1.0, 1.0], [1.0, -1.0]]), Linear(), 3) | ValueError
        | num_states is 2.*3
"""
LOGIT = r"""
    nelbo(LOGITS.index_fill(1, torch.tensor([1]), NAN)) | ValueError | logits.*\(0, 1\).*NaN
    nelbo(LOGITS + INF) | ValueError | logits.*\(0, 0\).*\+inf.*largest is inf
    nelbo(LOGITS - INF) | ValueError | logits.*-inf only.*at least one finite
    loss(LOGITS * NAN) | ValueError | logits.*NaN
    generate(denoiser=lambda z, t: scores(z, t) * NAN) | ValueError | logits.*NaN
    generate(temperature=0.0, denoiser=lambda z, t: scores(z, t) * NAN) | ValueError | logits.*NaN
    nelbo(torch.zeros(1, 3, 6)) | ValueError | logits has 6 columns.*vocab_size 5.*no mask
    generate(denoiser=lambda z, t: torch.zeros(*z.shape, 6)) | ValueError | logits has 6 columns
    nelbo(LOGITS[0]) | ValueError | logits has shape \(3, 5\).*\(B, L, V\) = \(1, 3, 5\)
    nelbo(LOGITS.long()) | TypeError | logits has type torch.int64.*floating-point
    generate(denoiser=lambda z, t: (scores(z, t),)) | TypeError | logits has type tuple.*tensor
    nelbo(method="closed") | ValueError | method is 'closed'.*'auto', 'generic'
    nelbo(parameterization="x0") | ValueError | parameterization is 'x0'.*'cavity', 'posterior'
    CLUSTERS.posterior(PROBS[..., :4], Z, T, T / 2) | ValueError
        | p has shape \(1, 3, 4\).*\(1, 3, 5\)
    dd.weightings.Clip(1.0, low=2.0) | ValueError | low is 2.0, high 1.0.*low <= high
    dd.weightings.Clip(NAN) | ValueError | low is 0.0, high nan
    dd.weightings.Clip("2") | TypeError | high is '2', must be a number
    dd.weightings.Clip((0.0, 2.0)) | TypeError | high is \(0.0, 2.0\), must be a number
    loss(weighting=2.0) | TypeError | weighting is 2.0, must be a .*Weighting such as Clip\(2.0\)
    loss(weighting=(0.0, 2.0)) | TypeError | weighting is \(0.0, 2.0\), must be a .*Weighting
    loss(weighting=dd.weightings.Dynamic()) | TypeError
        | Dynamic.* requires the mixing schedule of GIDD, .*none
    dd.weightings.Dynamic(0.0) | ValueError | high is 0.0
    dd.weightings.Constant(-1.0) | ValueError | value is -1.0
    dd.weightings.Optimal(0) | ValueError | length is 0, must be at least 1
    dd.weightings.PerLevel(2.0) | TypeError | factors is 2.0, must be a list of numbers
    dd.weightings.PerLevel([]) | ValueError | factors is empty
    dd.weightings.PerLevel([1.0], 2.0) | TypeError | weighting is 2.0, must be a .*Weighting or None
    loss(mode=[1.0, 2.0]) | ValueError | mode has 2 factors, must have 1
    loss(mode=1.0) | TypeError | mode is 1.0, must be one of 'standard', .*or a factor for each edge
    loss(mode=[-1.0]) | ValueError | mode\[0\] is -1.0
    loss(mode=[0.0]) | ValueError | mode is \[0.0\].*not 0
    loss(process=UNIFORM, z=X, mode=[1.0]) | TypeError
        | mode is \[1.0\], which Uniform .*must be 'standard'
    loss(process=UNIFORM, z=X, mode="edges") | TypeError
        | mode is 'edges', which Uniform .*must be 'standard'
    loss(mode="soft") | ValueError | mode is 'soft'.*'standard', 'hard'
    loss(process=UNIFORM, z=X, mode="hard") | TypeError
        | mode is 'hard', which Uniform .*must be 'standard'
    loss(process=UNIFORM, z=X, weighting=PerLevel([1.0])) | TypeError
        | factors.*Uniform has only tokens
    loss(weighting=PerLevel([1.0, 2.0])) | ValueError | factors has 2 entries, must have 1
    PerLevel([-1.0]) | ValueError | factors\[0\] is -1.0
    loss(reduction="max") | ValueError | reduction is 'max'.*'mean', 'sum' or 'none'
"""
DEVICE = r"""
    nelbo(z=Z.to(META)) | ValueError | one device.*x on cpu, z on meta
    nelbo(x=X.to(META)) | ValueError | one device.*x on meta
    MASKED.sample(X, T.to(META)) | ValueError | one device.*t on meta
    nelbo(process=dd.presets.mdlm(5).to(META)) | ValueError | one device.*process on meta
    nelbo(process=dd.presets.gidd(5, 0.2).to(META)) | ValueError | one device.*process on meta
    nelbo(LOGITS.to(META)) | ValueError | one device.*logits on meta
    loss(mask=MASK.to(META)) | ValueError | one device.*mask on meta
    CLUSTERS.posterior(PROBS.to(META), Z, T, T / 2) | ValueError | one device.*p on meta
    MASKED.sample(X, T, keyed(index=torch.arange(1).to(META))) | ValueError
        | generator is on meta.*cpu
    generate(generator=keyed(index=torch.arange(1).to(META))) | ValueError
        | generator is on meta.*cpu
    generate(prompt=ids(1).to(META)) | ValueError | prompt is on meta, and the process on cpu
    MASKED.sample(X, T, 5) | TypeError | generator is 5
    MASKED.sample(X, T, keyed(index=torch.arange(2))) | ValueError
        | shape is \(1, 3\), must start with 2
    keyed(seed=-1) | ValueError | seed is -1.*at least 0
    keyed(seed=2**63) | ValueError | seed is 9223372036854775808.*2\^63
    keyed(step=1.5) | TypeError | step is 1.5.*int
    keyed(index=torch.tensor([3, -2])) | ValueError | index holds -2.*>= 0
    keyed(index=[0]) | TypeError | index must be a torch.int64 tensor
    keyed(index=ids(0)) | ValueError | index has shape \(1, 1\).*\(B,\)
    dd.sample_times(0) | ValueError | n is 0.*at least 1
    dd.sample_times(3, "sobol") | ValueError | method is 'sobol'.*'iid', 'stratified', 'antithetic'
    dd.sample_times(3, generator=keyed()) | ValueError | n is 3, must be 1
    dd.sample_times(3, interval=(0.5, 0.5)) | ValueError | interval is \(0.5, 0.5\).*low < high
    dd.sample_times(3, interval=(0.0, 1.1)) | ValueError | interval is \(0.0, 1.1\).*high <= 1
    dd.bound(MASKED, scores, X, interval=(NAN, 1.0)) | ValueError | interval is \(nan, 1.0\)
    dd.bound(MASKED, narrow, X, interval=(0.99, 1.0)) | ValueError
        | denoiser narrow fails on states.* num_states=6
    dd.bound(CLUSTERS, narrow, X, interval=(0.99, 1.0)) | ValueError
        | \[0, 8\), the 5 tokens first.* num_states=8
    dd.bound(MASKED, broken, X) | IndexError | out of bounds
"""
SAMPLER = r"""
    generate(steps=0) | ValueError | steps is 0.*at least 1
    generate(steps=1.5) | TypeError | steps is 1.5.*int
    generate(steps=True) | TypeError | steps is True.*int
    generate(shape=(3,)) | ValueError | shape is \(3,\), must be \(B, L\)
    generate(shape=30) | TypeError | shape is 30, must be \(B, L\)
    generate(generator=1) | TypeError
        | generator is 1, must be a generator, or a list of ints, one seed for each of the 1 rows of
        shape
    generate(scores, MASKED) | TypeError
        | process is <function.*must be a .*; process and denoiser are exchanged
    dd.bound(scores, MASKED, X) | TypeError
        | must be a ddlib.processes.*; process and denoiser are exchanged
    nelbo(process=scores) | TypeError
        | process is <function.*must be a ddlib.processes.ForwardProcess object$
    loss(process="mdlm") | TypeError
        | process is 'mdlm', must be a ddlib.processes.ForwardProcess object$
    generate(denoiser=narrow) | ValueError
        | denoiser narrow fails on states.* z holds states in \[0, 6\).* num_states=6
    generate(denoiser=broken) | IndexError | out of bounds
    generate(shape=(0, 3)) | ValueError | shape's B is 0.*at least 1
    generate(temperature=-1.0) | ValueError | temperature is -1.0.*in \[0, 1e6\]
    generate(temperature=NAN) | ValueError | temperature is nan.*in \[0, 1e6\]
    generate(temperature=torch.ones(2)) | TypeError | temperature is tensor.*must be a number
    generate(top_p=0.0) | ValueError | top_p is 0.0.*\[1e-9, 1\]
    generate(top_p=1.1) | ValueError | top_p is 1.1.*\[1e-9, 1\]
    generate(steps=torch.tensor([0.0, 1.0])) | ValueError
        | times is \[0.0, 1.0\].*strictly decreasing
    generate(steps=torch.tensor([1.0, 0.5, 0.5, 0.0])) | ValueError | times.*strictly decreasing
    generate(steps=torch.tensor([1.0, NAN, 0.0])) | ValueError | times.*nan.*strictly decreasing
    generate(steps=torch.tensor([1.0, 0.25])) | ValueError
        | times is 1.0..0.25.*begin with 1 and end with 0
    generate(steps=torch.tensor([1.0])) | ValueError | times has shape \(1,\).*\(steps \+ 1,\)
    generate(steps=[1.0, 0.0]) | TypeError | steps is .*tensor of times
    generate(prompt=ids(1, 2, 3, 4)) | ValueError | prompt has 4 tokens, must have at most 3
    generate(CLUSTERS, prompt=ids(1, 5)) | ValueError | prompt holds clusters.*mask 7
    generate(prompt=ids(1, -1)) | ValueError | prompt holds -1.*\[0, 6\)
    generate(prompt=ids(1, 6)) | ValueError | prompt holds 6.*\[0, 6\)
    generate(prompt=ids(1, 2).float()) | TypeError | prompt has dtype torch.float32.*int64
    generate(prompt=[1, 2]) | TypeError | prompt
    generate(prompt=torch.tensor(1)) | ValueError | prompt has shape \(\)
    generate(shape=(3, 3), prompt=torch.ones(2, 1).long()) | ValueError | prompt has shape \(2, 1\)
    generate(sampler=Ancestral) | TypeError | sampler is <class.*Ancestral\(\)
    generate(dd.presets.gidd(5, 0.2), sampler=FirstHitting()) | TypeError
        | FirstHitting needs a process with levels
"""
GROUPS = HIERARCHY, SCHEDULE, TOKENS, LOGIT, DEVICE, SAMPLER


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [pytest.param(*row, id=row[0]) for group in GROUPS for row in rows(group)],
)
def test_refused_by_name_value_and_rule_and_nothing_touched(call, error, message):
    inputs = {k: v for k, v in globals().items() if isinstance(v, torch.Tensor)}
    before = {k: v.clone() for k, v in inputs.items()}
    with pytest.raises(eval(error), match=f"(?s){message}"):
        eval(call, NAMES | globals())
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
    for process, z in (
        (MASKED, Z),
        (CLUSTERS, ids(0, 6, 7)),
        (UNIFORM, X),
        (dd.presets.gidd(5, 0.2), Z),
    ):
        assert bool((nelbo(process=process, z=z) >= 0).all())
        assert bool((generate(process) < 5).all())
    assert bool(
        loss(mask=MASK, weighting=PerLevel([1.0], dd.weightings.Clip(2.0)), mode="hard") > 0
    )
    assert bool(loss(mode=[1.0]) == loss())
    minus_inf = LOGITS.index_fill(2, torch.tensor([1]), -INF)
    assert bool(nelbo(minus_inf).isfinite().all())
    assert Symbolic("1 - erf(t)/erf(1)").alpha(T).item() == pytest.approx(
        1 - math.erf(0.5) / math.erf(1)
    )


def test_values_are_looked_at_on_the_cpu_or_when_debugging(monkeypatch):
    monkeypatch.setattr(
        checks, "_debug", False
    )  # put back afterwards, whatever dd.debug does below
    far = torch.zeros(2, device=META)
    near = torch.zeros(2)
    assert checks.visible(near) and not checks.visible(far)
    checks.check_times("t", torch.full((2,), NAN, device=META), 2)
    checks.check_tokens("x", torch.full((1, 2), -100, device=META), 5)
    with pytest.raises(
        TypeError, match=r"x has dtype torch.int32"
    ):  # types and shapes cost nothing: always checked
        checks.check_tokens("x", torch.zeros(1, 2, dtype=torch.int32, device=META), 5)
    dd.debug(True)
    assert checks.visible(near) and checks.visible(far)
    dd.debug(False)
    assert checks.visible(near) and not checks.visible(far)


@pytest.mark.usefixtures("compilable")
def test_nothing_is_looked_at_while_compiling():
    def look(tensor):
        return tensor + (1 if checks.visible(tensor) else 0)

    assert (
        look(T).item() == 1.5
        and torch.compile(look, backend="eager", fullgraph=True)(T).item() == 0.5
    )
    compiled = torch.compile(nelbo, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(LOGITS), nelbo(LOGITS))
    assert bool(compiled(LOGITS * NAN)[0, 1:].isnan().all())


def flags():
    """Examples of registered classes with each Boolean argument of their constructors."""
    for kind in dd.registry.PROVED:
        for name in dd.registry.built_in(kind):
            cls = dd.registry.get(kind, name)
            for parameter in inspect.signature(cls).parameters.values():
                if isinstance(parameter.default, bool):
                    yield pytest.param(cls, parameter.name, id=f"{name}: {parameter.name}")


@pytest.mark.parametrize(("cls", "name"), list(flags()))
def test_a_number_is_no_boolean_argument(cls, name):
    """``Ancestral(512)`` would be forced transitions, meant as 512 steps."""
    arguments = dict(cls.examples()[0].arguments()) | {name: 512}
    with pytest.raises(TypeError, match=f"{name} is 512, must be True or False"):
        cls(**arguments)
