"""Trainer, Lightning and accelerate train as a plain loop does, to the bit; they resume, accumulate, and share work."""

import importlib.util
import os
import socket
import warnings
from copy import deepcopy
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader

import ddlib as dd
from ddlib.integrations import DiffusionCollator, DiffusionLoss, Positions, load_process, mean_bound, sequence_bounds
from ddlib_models import DiT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("as_users_call"),
    pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="lightning is not installed"),
    pytest.mark.filterwarnings("default"),  # theirs
]
PROCESS = dd.presets.hdlm([0, 0, 1, 1, 2], xi=0.9)
DATA = [{"input_ids": [(n * k) % 5 for k in range(1, n % 4 + 4)]} for n in range(20)]
EVEN = [{"input_ids": [(n * k) % 5 for k in range(1, 7)]} for n in range(20)]
RATE, STEPS, BATCH = 1e-2, 4, 4


def network():
    torch.manual_seed(0)
    return DiT(PROCESS.num_states, PROCESS.vocab_size, dim=16, depth=1, heads=2, cond_dim=8).train()


def optimizer(net):
    # with the usual eps Adam would divide gradients that are rounding errors by their own size
    return torch.optim.AdamW(net.parameters(), lr=RATE, eps=0.1)


def loader(data=DATA, batch=BATCH, **options):
    return DataLoader(
        Positions(data, passes=2), batch, collate_fn=DiffusionCollator(PROCESS, batch_size=BATCH), **options
    )


def plain(data=DATA, half=False, steps=STEPS):
    """Losses and network of a loop in plain PyTorch."""
    net, loss_of, losses = network(), DiffusionLoss(PROCESS, "clip:5"), []
    optim = optimizer(net)
    for _, batch in zip(range(steps), loader(data), strict=False):
        labels = batch.pop("labels")
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            logits = net(**batch)
        loss = loss_of(logits, labels)
        loss.backward()
        optim.step()
        optim.zero_grad()
        losses.append(loss.item())
    return losses, net


def weights(net):
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def trainer(folder, data=DATA, resume=None, process=PROCESS, callbacks=(), **options):
    from transformers import TrainingArguments

    from ddlib.integrations.transformers import DiffusionTrainer

    net = network()
    options = {"per_device_train_batch_size": BATCH, "max_steps": STEPS, "save_strategy": "no", **options}
    quiet = {"report_to": "none", "disable_tqdm": True, "logging_steps": 1, "use_cpu": True, "max_grad_norm": 0}
    args = TrainingArguments(str(folder), lr_scheduler_type="constant", seed=0, **quiet, **options)
    found = DiffusionTrainer(
        net,
        args,
        process=process,
        train_dataset=data,
        eval_dataset=data,
        compute_loss_func=DiffusionLoss(process, "clip:5"),
        optimizers=(optimizer(net), None),
        callbacks=list(callbacks),
    )
    found.train(resume)
    return found, [entry["loss"] for entry in found.state.log_history if "loss" in entry]


def lightning(folder, data=DATA, batch=BATCH, callbacks=(), net=None, resume=None, **options):
    import lightning as L

    from ddlib.integrations.lightning import DiffusionDataModule, DiffusionModule

    class Module(DiffusionModule):
        def configure_optimizers(self):
            return optimizer(self.network)

    class Losses(L.Callback):
        found: list[float]

        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            self.found.append(float(outputs["loss"]))

    losses = Losses()
    losses.found = []
    module = Module(net or network(), PROCESS, weighting="clip:5", lr=RATE)
    quiet = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
    }
    options = {"accelerator": "cpu", "num_sanity_val_steps": 0, "devices": 1, "max_steps": STEPS, **quiet, **options}
    fit = L.Trainer(default_root_dir=folder, callbacks=[losses, *callbacks], **options)
    fit.fit(module, datamodule=DiffusionDataModule(PROCESS, data, data, batch_size=batch), ckpt_path=resume)
    return fit, module, losses.found


def evaluated(net, data=DATA):
    net.eval()
    read = DataLoader(Positions(data, shuffle=False), 8, collate_fn=DiffusionCollator(PROCESS))
    return mean_bound(torch.cat([sequence_bounds(PROCESS, net, batch["labels"]) for batch in read]))


@pytest.mark.parametrize(
    "options", [{"dataloader_num_workers": 2}, {"bf16": True}, {"torch_compile_backend": "eager"}], ids=str
)
def test_trainer_has_the_losses_of_a_plain_loop(options, tmp_path):
    found, losses = trainer(tmp_path, **options)
    expected, net = plain(half="bf16" in options)
    assert losses == expected
    assert torch.equal(weights(found.model), weights(net))


def test_trainer_accumulates_tokens_evaluates_by_the_bound_and_saves(tmp_path):
    from ddlib.integrations.transformers import SampleCallback

    options = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 4}
    found, losses = trainer(tmp_path, callbacks=[SampleCallback(PROCESS, (2, 6), 4)], **options)
    expected, net = plain()
    assert losses == pytest.approx(expected, rel=1e-5) and torch.allclose(weights(found.model), weights(net), atol=1e-4)
    metrics, mean = found.evaluate(), evaluated(found.model)
    assert metrics["eval_bound"] == metrics["eval_loss"] == pytest.approx(mean.value)
    assert metrics["eval_bound_error"] == pytest.approx(mean.standard_error)
    text = (tmp_path / "samples" / f"step_{STEPS:08d}.txt").read_text()
    assert [len(line.split()) for line in text.splitlines()] == [6, 6]
    found.save_model(str(tmp_path / "model"))
    assert dd.values(load_process(tmp_path / "model")) == dd.values(PROCESS)
    assert (tmp_path / "model" / "model.safetensors").exists()


def test_trainer_resumes_with_the_saved_process(tmp_path):
    saving = {"save_strategy": "steps", "save_steps": 2}
    trainer(tmp_path, max_steps=2, **saving)
    checkpoint = str(tmp_path / "checkpoint-2")
    resumed, again = trainer(tmp_path, resume=checkpoint, **saving)
    losses, net = plain()
    assert again == losses and torch.equal(weights(resumed.model), weights(net))
    with pytest.raises(ValueError, match=r"of another process: hierarchy\.xi is 0\.9 there, 0\.8 here"):
        trainer(tmp_path, resume=checkpoint, process=dd.presets.hdlm([0, 0, 1, 1, 2], xi=0.8))


def test_lightning_in_half_precision_has_the_losses_of_a_plain_loop(tmp_path):
    _, module, losses = lightning(tmp_path, precision="bf16-mixed")
    expected, net = plain(half=True)
    assert losses == expected and torch.equal(weights(module.network), weights(net))


def test_lightning_validates_samples_and_saves_with_the_average_of_the_weights(tmp_path):
    from lightning.pytorch.callbacks import EMAWeightAveraging

    from ddlib.integrations.lightning import DiffusionModule, SampleCallback

    average = EMAWeightAveraging(decay=0.5)
    limits = {"val_check_interval": STEPS, "check_val_every_n_epoch": None}
    fit, module, found = lightning(tmp_path, callbacks=[SampleCallback((2, 6), 4), average], **limits)
    [losses, net], expected = plain(), evaluated(module.network)  # the average is in place after training
    assert found == losses and not torch.equal(weights(net), weights(module.network))
    assert float(fit.callback_metrics["val_bound"]) == pytest.approx(expected.value, rel=1e-6)
    assert float(fit.callback_metrics["val_bound_error"]) == pytest.approx(expected.standard_error, rel=1e-6)
    assert len((tmp_path / "samples" / f"step_{STEPS:08d}.txt").read_text().splitlines()) == 2
    path = tmp_path / "last.ckpt"
    fit.save_checkpoint(path, weights_only=True)
    loaded = DiffusionModule.load_from_checkpoint(path, network=network())
    assert torch.equal(weights(loaded.network), weights(module.network))
    assert dd.values(loaded.process) == dd.values(PROCESS) and dd.values(loaded.loss.weighting) == dd.values(
        module.loss.weighting
    )
    assert loaded.sample((2, 6), 4).shape == (2, 6)
    with pytest.raises(ValueError, match="of another"):
        DiffusionModule.load_from_checkpoint(path, network=network(), process=dd.presets.hdlm([0, 0, 1, 1, 2]))


def test_lightning_accumulates_and_loads_a_network_of_plain_values(tmp_path):
    from ddlib.integrations.lightning import DiffusionModule

    torch.manual_seed(0)
    dit = {"kind": "dit", "num_states": 9, "vocab_size": 5, "dim": 16, "depth": 1, "heads": 2, "cond_dim": 8}
    fit, module, _ = lightning(tmp_path, EVEN, 1, net=dit, accumulate_grad_batches=4)
    assert torch.allclose(weights(module.network), weights(plain(EVEN)[1]), atol=1e-5)
    fit.save_checkpoint(tmp_path / "last.ckpt")
    loaded = DiffusionModule.load_from_checkpoint(tmp_path / "last.ckpt")
    assert torch.equal(weights(loaded), weights(module)) and dd.values(loaded.process) == dd.values(PROCESS)


@pytest.mark.parametrize("stop", [2, 5])
def test_lightning_resumes_within_an_epoch_and_after_it(stop, tmp_path):
    fit, _, first = lightning(tmp_path, max_steps=stop)
    fit.save_checkpoint(tmp_path / "stopped.ckpt")
    _, module, rest = lightning(tmp_path, max_steps=stop + 2, resume=tmp_path / "stopped.ckpt")
    losses, net = plain(steps=stop + 2)
    assert first + rest == losses and torch.equal(weights(module.network), weights(net))


def test_the_stock_trainer_has_the_losses_of_a_plain_loop(tmp_path):
    from transformers import Trainer, TrainingArguments

    net = network()
    quiet = {"report_to": "none", "disable_tqdm": True, "logging_steps": 1, "use_cpu": True, "max_grad_norm": 0}
    options = {"remove_unused_columns": False, "train_sampling_strategy": "sequential", "save_strategy": "no"}
    options |= {"per_device_train_batch_size": BATCH, "max_steps": STEPS, "lr_scheduler_type": "constant"}
    stock = Trainer(
        net,
        TrainingArguments(str(tmp_path), **quiet, **options),
        DiffusionCollator(PROCESS, batch_size=BATCH),
        Positions(DATA, passes=2),
        compute_loss_func=DiffusionLoss(PROCESS, "clip:5"),
        optimizers=(optimizer(net), None),
    )
    stock.train()
    losses = [entry["loss"] for entry in stock.state.log_history if "loss" in entry]
    assert losses == plain()[0] and torch.equal(weights(net), weights(plain()[1]))


def test_a_loader_that_lightning_shuffles_is_refused():
    from ddlib.integrations.lightning import DiffusionModule

    module = DiffusionModule(network(), PROCESS)
    module.trainer = SimpleNamespace(train_dataloader=loader(), world_size=2)
    with pytest.raises(ValueError, match="Lightning shuffles the positions for 2 processes"):
        module.on_train_start()
    module.trainer = SimpleNamespace(train_dataloader=loader(), world_size=1)
    module.on_train_start()


def worker(rank, kind, port, folder, queue):
    """One of two processes that train together."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "lo"}
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2", "NODE_RANK": "0"}
    warnings.simplefilter("ignore")
    if kind == "trainer":
        found, _ = trainer(folder, per_device_train_batch_size=2, ddp_backend="gloo")
        metrics = found.evaluate()
        result = weights(found.model), metrics["eval_bound"]
    elif kind == "lightning":
        from lightning.pytorch.strategies import DDPStrategy

        strategy = DDPStrategy(process_group_backend="gloo")
        limits = {"val_check_interval": STEPS, "check_val_every_n_epoch": None}
        fit, module, _ = lightning(folder, EVEN, 2, strategy=strategy, devices=2, **limits)
        result = weights(module.network), float(fit.callback_metrics["val_bound"])
    else:
        from accelerate import Accelerator
        from accelerate.state import AcceleratorState

        AcceleratorState._reset_state(True)  # of a Trainer before the fork
        accelerator = Accelerator(cpu=True)
        net, loss_of = network(), DiffusionLoss(PROCESS, "clip:5")
        model, optim, data = accelerator.prepare(net, optimizer(net), loader(EVEN, 2))
        for _, batch in zip(range(STEPS), data, strict=False):
            labels = batch.pop("labels")
            accelerator.backward(loss_of(model(**batch), labels))
            optim.step()
            optim.zero_grad()
        result = weights(net), evaluated(net, EVEN).value
    queue.put((rank, result[0].tolist(), result[1]))


@pytest.mark.parametrize("kind", ["trainer", "lightning", "accelerate"])
def test_two_processes_train_as_one(kind, tmp_path):
    import lightning  # noqa: F401  before the fork
    import transformers.trainer  # noqa: F401

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = torch.multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    started = torch.multiprocessing.start_processes(
        worker, (kind, port, tmp_path, queue), nprocs=2, join=False, start_method="fork"
    )
    found = sorted(queue.get() for _ in range(2))
    while not started.join():
        pass
    data = DATA if kind == "trainer" else EVEN
    [_, net] = plain(data)
    for _, flat, bound in found:
        assert torch.allclose(torch.tensor(flat), weights(net), atol=1e-4)
        assert bound == pytest.approx(evaluated(deepcopy(net), data).value, rel=1e-4)
    assert found[0][1:] == found[1][1:]
