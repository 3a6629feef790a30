"""A hierarchy of a real vocabulary from the command line to a network in training, with every
attention back end.
"""

from contextlib import nullcontext
from dataclasses import dataclass

import pytest
import torch
from tokenizers import Tokenizer

import ddlib as dd
from ddlib.hierarchies import load_clusters
from ddlib.vocabulary import fingerprint
from ddlib_models import DiT
from ddlib_models.attention.backends import SDPA, Attention, Flex, backend
from recipes import clusters
from recipes.data import text
from recipes.embeddings import embeddings

WORDS = 1024
LEVELS = (64, 16, 4)
DIM = 32
FIRST_YEAR = 1990
ROWS = 6
LENGTH = 24
STEPS = 5


@dataclass(frozen=True)
class Built:
    """Folder of a run of the command line, and the objects built from it."""

    tokenizer: Tokenizer
    found: clusters.Clusters
    report: list[str]
    process: dd.processes.Hierarchical


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    out = tmp_path_factory.mktemp("clusters")
    options = dict(vocab_size=WORDS, dim=DIM, first_year=FIRST_YEAR, restarts=1, out=out)
    flags = [
        part
        for name, value in options.items()
        for part in (f"--{name.replace('_', '-')}", str(value))
    ]
    made = clusters.main([*flags, "--clusters", *map(str, LEVELS)])
    tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
    found = load_clusters(out / "clusters", fingerprint(tokenizer.get_vocab()))
    assert all(torch.equal(a, b) for a, b in zip(made.parents, found.parents, strict=True))
    tree = dd.hierarchies.Tree(found.parents, xi=[0.9, 1.0, 1.0], fingerprint=found.fingerprint)
    process = dd.processes.Hierarchical(tree, dd.schedules.Linear())
    report = (out / "clusters.md").read_text(encoding="utf-8").splitlines()
    return Built(tokenizer, found, report, process)


def test_the_report_shows_every_cluster_of_every_level(built):
    rows = [
        [cell.strip() for cell in line.split(" | ")]
        for line in built.report
        if line.startswith("| ")
    ]
    shown = [row for row in rows if row[1].isdigit()]
    assert len(shown) == sum(LEVELS)
    words = clusters.Words(
        built.tokenizer, torch.zeros(WORDS, 1), torch.zeros(WORDS, dtype=torch.int64)
    )
    names = [words.name(token) for token in range(WORDS)]
    first = 0
    for level, count in enumerate(LEVELS):
        of_word = built.found.of_tokens(level)
        mine = shown[first : first + count]
        assert [int(row[1]) for row in mine] == of_word.bincount().tolist()
        for index, row in enumerate(mine):
            members = {
                names[token].replace("|", "\\|")
                for token in (of_word == index).nonzero()[:, 0].tolist()
            }
            assert set(row[3].removesuffix(" |").split(" ")) <= members
        first += count


def test_the_levels_are_nested_and_the_process_has_these_tokens_only(built):
    assert built.process.hierarchy.levels == (WORDS, *LEVELS, 1)
    for fine, coarse in ((0, 1), (1, 2)):
        pairs = torch.stack([built.found.of_tokens(fine), built.found.of_tokens(coarse)]).unique(
            dim=1
        )
        assert pairs.shape[1] == LEVELS[fine]
    vocabulary = built.tokenizer.get_vocab()
    dd.check_vocabulary(built.process, vocabulary)
    with pytest.raises(ValueError, match="another tokenizer"):
        dd.check_vocabulary(
            built.process, {token: WORDS - 1 - index for token, index in vocabulary.items()}
        )
    other = text.train_tokenizer(text.join(text.load_speeches(2010)), WORDS)
    with pytest.raises(ValueError, match="another tokenizer"):
        dd.check_vocabulary(built.process, other.get_vocab())


def test_the_process_is_verified(built):
    report = dd.verify(built.process)
    assert report.ok, str(report)


def model(built: Built, attention: str | Attention = "sdpa", dim: int = DIM) -> DiT:
    """A network whose attention matters from the first step on, with the clusters at their
    centroids.
    """
    torch.manual_seed(0)
    states = built.process.num_states
    words = built.process.vocab_size
    network = DiT(states, words, dim, depth=2, heads=2, cond_dim=16, attention=attention)
    for name, parameter in network.named_parameters():
        if not name.startswith("embedding"):
            torch.nn.init.normal_(parameter, std=0.1 if name.startswith("head") else 0.3)
    embeddings.start_at_centroids(network, built.found)
    return network


def test_cluster_embeddings_start_at_the_centroids_of_all_levels(built):
    table = model(built).embedding.weight
    assert torch.equal(table[WORDS:-1], torch.cat(built.found.centroids))
    fine, coarse = built.process.hierarchy.maps[1:3]
    states = torch.arange(built.process.num_states)
    assert torch.equal(table[states[WORDS + 64 + 16 + 3]], built.found.centroids[2][3])
    assert (fine.num_children, coarse.num_children) == LEVELS[:2]


@pytest.mark.parametrize("dim", [8, 48])
def test_centroids_of_another_width_keep_their_inner_products_as_well_as_can_be(built, dim):
    rows = torch.cat(built.found.centroids)
    started = model(built, dim=dim).embedding.weight[WORDS:-1]
    lost = torch.linalg.svdvals(rows)[dim:].pow(4).sum().sqrt()
    error = (started @ started.T - rows @ rows.T).norm()
    torch.testing.assert_close(error, lost, atol=1e-4, rtol=1e-3)


def test_a_network_for_other_states_is_refused(built):
    for states, words in ((WORDS + sum(LEVELS), WORDS), (WORDS + sum(LEVELS) + 1, WORDS - 1)):
        network = DiT(states, words, DIM, depth=1, heads=2)
        with pytest.raises(ValueError, match="1024 tokens and 84 clusters, so 1109 states"):
            embeddings.start_at_centroids(network, built.found)


@dataclass(frozen=True)
class Curve:
    """The loss before each step, in nats per token, and the weights that had it."""

    losses: list[float]
    weights: list[dict[str, torch.Tensor]]


def run(
    built: Built,
    attention: str | Attention,
    packed: bool,
    device: str = "cpu",
    half: bool = False,
    weights: list[dict[str, torch.Tensor]] | None = None,
) -> Curve:
    """A few steps on a batch of speeches, or the losses at given weights for a back end without a
    backward pass.
    """
    stream = text.encode(built.tokenizer, text.join(text.load_speeches(2015)))
    x = stream[: ROWS * LENGTH].view(ROWS, LENGTH)
    network = model(built, attention).to(device)
    process = built.process
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    curve = Curve([], [])
    offsets = torch.arange(0, (ROWS + 1) * LENGTH, LENGTH, dtype=torch.int32, device=device)
    packing = network.pack(offsets) if packed else None
    for step in range(STEPS):
        noise = dd.KeyedGenerator(seed=0, step=step, index=torch.arange(ROWS))
        t = dd.sample_times(ROWS, generator=noise)
        z = process.sample(x, t, generator=noise)
        if weights is not None:
            network.load_state_dict(weights[step])
        curve.weights.append(
            {name: value.detach().clone() for name, value in network.state_dict().items()}
        )
        row = z.view(1, -1) if packed else z
        with (
            torch.set_grad_enabled(weights is None),
            torch.autocast(device, torch.bfloat16) if half else nullcontext(),
        ):
            logits = (
                network(row.to(device), t.to(device), packing).float().cpu().view(ROWS, LENGTH, -1)
            )
        loss = dd.training_loss(process, logits, x, z, t, weighting=dd.weightings.Clip(2.0))
        curve.losses.append(loss.item())
        if weights is None:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return curve


@pytest.fixture(scope="module")
def reference(built):
    """The curve of SDPA on single sequences."""
    return run(built, "sdpa", packed=False)


def test_the_network_learns(reference, built):
    end = reference.weights[-1]
    start = reference.weights[0]
    before = run(built, "sdpa", packed=False, weights=[start] * STEPS).losses
    after = run(built, "sdpa", packed=False, weights=[end] * STEPS).losses
    assert all(late < early for late, early in zip(after, before, strict=True))
    assert not torch.equal(end["embedding.weight"][WORDS:], start["embedding.weight"][WORDS:])


def test_packed_sequences_train_as_single_ones(built, reference):
    packed = run(built, "sdpa", packed=True)
    assert packed.losses == pytest.approx(reference.losses, abs=1e-5)
    for name, value in packed.weights[-1].items():
        torch.testing.assert_close(value, reference.weights[-1][name], atol=1e-5, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("packed", [False, True])
def test_flex_which_has_no_backward_pass_here_has_the_losses_of_sdpa_all_along(
    built, reference, packed
):
    curve = run(built, Flex(), packed, weights=reference.weights)
    assert curve.losses == pytest.approx(reference.losses, abs=1e-5)


def test_losses_differ_if_sequences_of_a_pack_attend_to_each_other(built, reference):
    class Leaking(SDPA):
        def mask(self, cu_seqlens):
            return None

    losses = run(built, Leaking(), packed=True, weights=reference.weights).losses
    assert (
        max(abs(leaking - right) for leaking, right in zip(losses, reference.losses, strict=True))
        > 1e-3
    )


@pytest.mark.gpu
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("name", "half", "tolerance"),
    [
        ("sdpa", False, 1e-4),
        ("flex", False, 1e-4),
        ("sdpa", True, 0.05),
        ("varlen", True, 0.05),
        ("xformers", True, 0.05),
    ],
)
def test_every_back_end_of_a_gpu_trains_with_the_losses_of_the_cpu(
    built, reference, name, half, tolerance, packed
):
    """Varlen and xformers take bfloat16 only, whose eight bits are what the wider tolerance is
    for.
    """
    curve = run(built, backend(name), packed, device="cuda", half=half)
    assert curve.losses == pytest.approx(reference.losses, abs=tolerance)
