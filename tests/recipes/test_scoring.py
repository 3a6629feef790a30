import math

import pytest
import torch
from huggingface_hub.errors import RepositoryNotFoundError
from pretrained_by_others import write
from tokenizers import Tokenizer, models, pre_tokenizers

from recipes.data.hub import nothing
from recipes.engine.parallel import alone
from recipes.evaluation.generative import judge
from recipes.metrics.scoring import generative, load_scorer, score, unigram_entropy

WORDS = ["<s>", "the", "union", "is", "strong", "free", "people"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A causal language model with random weights, as it lies on a disk without a network."""
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("scorer")
    tokenizer = Tokenizer(
        models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<s>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>").save_pretrained(folder)
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(WORDS), n_positions=8, n_embd=8, n_layer=1, n_head=2, initializer_range=1.0
    )
    GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


def by_hand(scorer, words):
    """Sum of -log p(word | words before it), one word after another, without batches."""
    ids = [WORDS.index(word) for word in words]
    nats = 0.0
    for place in range(1, len(ids)):
        with torch.no_grad():
            logits = scorer.model(input_ids=torch.tensor([ids[:place]])).logits[0, -1].double()
        nats -= float(logits.log_softmax(-1)[ids[place]])
    return nats


def test_nats_are_those_of_the_chain_rule(folder):
    scorer = load_scorer(str(folder))
    texts = ["the union is strong", "free", "people is the", ""]
    for batch in (1, 3, 16):
        scores = score(scorer, texts, batch=batch)
        assert scores.tokens.tolist() == [3, 0, 2, 0] and scores.cut == 0
        expected = [by_hand(scorer, text.split()) for text in texts]
        torch.testing.assert_close(
            scores.nats, torch.tensor(expected, dtype=torch.float64), atol=1e-5, rtol=0
        )


def test_with_a_beginning_the_first_token_is_predicted_too(folder):
    scorer = load_scorer(str(folder))
    scores = score(scorer, ["the union", "free", ""], bos=True)
    assert scores.tokens.tolist() == [2, 1, 0]
    assert float(scores.nats[1]) == pytest.approx(by_hand(scorer, ["<s>", "free"]), abs=1e-5)


def test_the_error_names_a_text_that_the_scorer_cannot_read(folder):
    scores = score(load_scorer(str(folder)), ["the union " * 6, "the union"])
    assert scores.tokens.tolist() == [7, 1] and scores.cut == 1


def test_perplexity_is_over_all_tokens_and_not_a_mean_over_samples(folder):
    scorer = load_scorer(str(folder))
    texts = ["the union is strong people", "free people"]
    found = generative(score(scorer, texts), [[1, 2, 3, 4, 6], [5, 6]])
    total = sum(by_hand(scorer, text.split()) for text in texts)
    assert found.per_token.value == pytest.approx(total / 5, abs=1e-5)
    assert found.entropy.value == pytest.approx((math.log(5) + math.log(2)) / 2)
    assert found.scored_tokens == 5 and found.samples == 2 and found.empty == 0


def test_a_degenerate_sample_shows_no_entropy_beside_its_perplexity(folder):
    scores = score(load_scorer(str(folder)), ["the the the the"])
    found = generative(scores, [[1, 1, 1, 1]])
    assert found.entropy.value == 0
    assert found.per_token.value > 0


def test_empty_samples_are_counted_apart(folder):
    found = generative(score(load_scorer(str(folder)), ["", "the union"]), [[], [1, 2]])
    assert found.empty == 1 and found.entropy.value == pytest.approx(math.log(2))
    with pytest.raises(ValueError, match="none of the 1 samples has text"):
        generative(score(load_scorer(str(folder)), [""]), [[]])


def test_entropy_of_one_sample():
    assert unigram_entropy([7, 7, 7]) == 0
    assert unigram_entropy([1, 2, 1, 3]) == pytest.approx(1.5 * math.log(2))
    assert math.isnan(unigram_entropy([]))


def test_the_revision_distinguishes_weights(folder, tmp_path):
    scorer = load_scorer(str(folder))
    scorer.tokenizer.save_pretrained(tmp_path)
    with torch.no_grad():
        scorer.model.lm_head.weight[0, 0] += 1
    scorer.model.save_pretrained(tmp_path)
    assert len(scorer.revision) == 64 and load_scorer(str(tmp_path)).revision != scorer.revision


def test_the_error_of_a_missing_scorer_names_the_remedy(tmp_path):
    with pytest.raises(
        ValueError, match=r"no folder .*/gpt2-large, and not a valid name of a model.*--scorer none"
    ):
        load_scorer(str(tmp_path / "gpt2-large"))


def test_a_masked_language_model_is_no_scorer(tmp_path):
    bidirectional = str(write(tmp_path, "bert"))
    with pytest.raises(
        TypeError, match=r"scorer=.*: BertLMHeadModel is not causal, .* requires a causal language"
    ):
        load_scorer(bidirectional)
    with pytest.raises(
        TypeError, match="is not causal"
    ):  # not a warning: no number is to be had from it
        judge(bidirectional, False, alone())


def test_the_hub_is_called_once_and_its_errors_are_distinguished(monkeypatch):
    tries = []

    def unreachable(self, name, timeout):
        tries.append((name, timeout <= 10))
        raise ConnectionError("no route")

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", unreachable)
    with pytest.raises(ValueError, match=r"loaded: no folder a/b, and the hub does not answer\."):
        load_scorer("a/b")
    assert tries == [("a/b", True)]
    for status, message in (
        (404, "the hub answers 404: no such model"),
        (401, "the hub answers 401"),
    ):
        answer = type("Answer", (), {"status_code": status, "headers": {}, "request": None})()
        assert message in nothing("a/b", RepositoryNotFoundError("no", response=answer))
