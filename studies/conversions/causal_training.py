"""Training of a causal language model on the windows of a recipe, and its samples by
transformers.
"""

import time
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from recipes.config import Recipe
from recipes.data import Prepared, examples, open_prepared
from recipes.engine.optimizer import rate


class Row(NamedTuple):
    """A sample: its tokens, the CPU seconds and network calls that it took."""

    tokens: list[int]
    seconds: float
    calls: float


def finetune(given: Recipe, name: str, folder: Path) -> None:
    """Train a causal model by the next token, with optimizer, order of windows and precision of a
    recipe, and save it.

    Args:
        given: the recipe.
        name: the causal model, a folder or a name.
        folder: folder of the result.
    """
    from transformers import AutoModelForCausalLM

    torch.manual_seed(given.seed)
    model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32).train()
    how, data = given.optimizer, open_prepared(given.data.folder)
    values = dict(betas=how.betas, eps=how.eps, weight_decay=how.weight_decay)
    optimizer = torch.optim.AdamW(model.parameters(), lr=how.lr, **values)
    stream = examples(
        data.train,
        length=given.data.length,
        pad_id=data.fill_id,
        batch_size=given.batch,
        seed=given.seed,
        threads=1,
    )
    with closing(stream):
        for step, part in enumerate(islice(stream, given.steps)):
            with torch.autocast("cpu", torch.bfloat16, enabled=given.hardware.bf16):
                loss = model(part.x, labels=part.x).loss
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), how.max_grad_norm)
            for group in optimizer.param_groups:
                group["lr"] = rate(how, step, given.steps)
            optimizer.step()
            optimizer.zero_grad()
            if step % 10 == 0:
                print(f"step {step}: {loss.item():.3f} nats/token", flush=True)
    model.eval().save_pretrained(folder)


def generated(folder: Path, data: Prepared, length: int, count: int) -> list[Row]:
    """Return samples of a causal model at temperature 1, one by one, by transformers with its
    cache.
    """
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = (
        None  # padding stands behind a text, as in the windows of training
    )
    begin, rows = torch.tensor([[data.bos_id]]), list[Row]()
    for number in range(count):
        torch.manual_seed(number)
        start = time.process_time()
        found = model.generate(
            begin,
            do_sample=True,
            top_k=0,
            temperature=1.0,
            max_new_tokens=length - 1,
            pad_token_id=data.pad_id,
            attention_mask=torch.ones_like(begin),
        )
        rows.append(Row(found[0].tolist(), time.process_time() - start, length - 1))
    return rows
