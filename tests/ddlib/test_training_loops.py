"""Trainer, Lightning and accelerate train as a plain loop does, to the bit.

They resume, accumulate, and share work.
"""

import importlib.util
import os
import shutil
import socket
import warnings
from copy import deepcopy
from functools import partial
from time import monotonic as time
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from torch._dynamo.utils import counters
from torch.multiprocessing import start_processes
from torch.utils.data import DataLoader
from zoo.calls import seeded

import ddlib as dd
from ddlib.integrations import (
    DiffusionCollator,
    DiffusionLoss,
    Positions,
    load_process,
    mean_bound,
    save_process,
    sequence_bounds,
)
from ddlib.integrations.saved import draw_samples
from ddlib_models import DiT

pytestmark = [
    pytest.mark.usefixtures("as_users_call"),
    pytest.mark.skipif(
        importlib.util.find_spec("lightning") is None, reason="lightning is not installed"
    ),
    pytest.mark.filterwarnings("default"),  # theirs
]
PROCESS = dd.presets.hdlm([0, 0, 1, 1, 2], xi=0.9)
DATA = [{"input_ids": [(n * k) % 5 for k in range(1, n % 4 + 4)]} for n in range(20)]
EVEN = [{"input_ids": [(n * k) % 5 for k in range(1, 7)]} for n in range(20)]
RATE = 1e-2
STEPS = 4
BATCH = 4
QUIET = dict.fromkeys(
    ("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False
)


class Small(torch.nn.Module):
    """Network of two layers: inductor compiles those of a DiT in a minute."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = (
            torch.nn.Embedding(PROCESS.num_states, 16),
            torch.nn.Linear(16, PROCESS.vocab_size),
        )

    def forward(self, z, t):
        hidden = self.embedding(z)
        return self.head((hidden + hidden.mean(1, keepdim=True)) * (1 + t[:, None, None]))


def dit():
    return DiT(PROCESS.num_states, PROCESS.vocab_size, dim=16, depth=1, heads=2, cond_dim=8)


def network(backend=None, make=dit):
    torch.manual_seed(0)
    net = make().train()
    if backend:
        net.compile(backend=backend)
    return net


def optimizer(net):
    # with the usual eps Adam would divide gradients that are rounding errors by their own size
    return torch.optim.AdamW(net.parameters(), lr=RATE, eps=0.1)


def loader(data=DATA, batch=BATCH, **options):
    return DataLoader(
        Positions(data, passes=2),
        batch,
        collate_fn=DiffusionCollator(PROCESS, batch_size=BATCH),
        **options,
    )


def plain(data=DATA, steps=STEPS, half=False, backend=None):
    """Losses and network of a loop in plain PyTorch."""
    net = network(backend)
    loss_of = DiffusionLoss(PROCESS, "clip:5")
    losses = []
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
    whole = [
        getattr(p, "full_tensor", lambda p=p: p)() for p in net.parameters()
    ]  # of shards, if there are any
    return torch.cat([p.detach().flatten() for p in whole])


ARGUMENTS = {
    "report_to": "none",
    "disable_tqdm": True,
    "logging_steps": 1,
    "use_cpu": True,
    "max_grad_norm": 0,
}
ARGUMENTS |= {"per_device_train_batch_size": BATCH, "max_steps": STEPS, "save_strategy": "no"}
ARGUMENTS |= {"lr_scheduler_type": "constant"}


def trainer(folder, data=DATA, resume=None, process=PROCESS, callbacks=(), **options):
    from transformers import TrainingArguments

    from ddlib.integrations.transformers import DiffusionTrainer

    class Trainer(DiffusionTrainer):
        def create_optimizer(self, model=None):  # FSDP takes no optimizer that was made before
            self.optimizer = self.optimizer or optimizer(self.model)
            return self.optimizer

    found = Trainer(
        network(),
        TrainingArguments(str(folder), seed=0, **ARGUMENTS | options),
        process=process,
        train_dataset=data,
        eval_dataset=data,
        compute_loss_func=DiffusionLoss(process, "clip:5"),
        callbacks=list(callbacks),
    )
    found.train(resume)
    return found, [entry["loss"] for entry in found.state.log_history if "loss" in entry]


def lightning(folder, data=DATA, batch=BATCH, callbacks=(), net=None, resume=None, **options):
    import lightning as L
    from torch.distributed.fsdp import fully_shard

    from ddlib.integrations.lightning import DiffusionDataModule, DiffusionModule

    class Module(DiffusionModule):
        def configure_model(self):
            if self.device_mesh is not None:
                for part in (*self.network.blocks, self.network):
                    fully_shard(part, mesh=self.device_mesh["data_parallel"])

        def configure_optimizers(self):
            return optimizer(self.network)

    class Losses(L.Callback):
        found: list[float]

        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            self.found.append(float(outputs["loss"]))

    losses = Losses()
    losses.found = []
    module = Module(net or network(), PROCESS, weighting="clip:5", lr=RATE)
    options = {
        "accelerator": "cpu",
        "num_sanity_val_steps": 0,
        "devices": 1,
        "max_steps": STEPS,
        **QUIET,
        **options,
    }
    fit = L.Trainer(default_root_dir=folder, callbacks=[losses, *callbacks], **options)
    fit.fit(
        module,
        datamodule=DiffusionDataModule(PROCESS, data, data, batch_size=batch),
        ckpt_path=resume,
    )
    return fit, module, losses.found


def accelerated(data=DATA, batch=BATCH, steps=STEPS, resume=None, **options):
    """The loop of docs/own_loop.md, for a number of steps of the optimizer."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(True)  # of the test before
    accelerator = Accelerator(cpu=True, **options)
    net = network()
    loss_of = DiffusionLoss(PROCESS, "clip:5")
    losses = []
    done = 0
    model, optim, read = accelerator.prepare(net, optimizer(net), loader(data, batch))
    if resume is not None:
        accelerator.load_state(resume)
        done = int(resume.name.partition("-")[2])
        read = accelerator.skip_first_batches(read, done * accelerator.gradient_accumulation_steps)
    for batch in read:
        labels = batch.pop("labels")
        with accelerator.accumulate(model):
            loss = loss_of(model(**batch), labels)
            accelerator.backward(loss)
            optim.step()
            optim.zero_grad()
        losses.append(loss.item())
        done += accelerator.sync_gradients
        if done == steps:
            return accelerator, model, losses
    raise AssertionError(f"data for {done} steps only")


def trained(
    kind, folder, data=DATA, steps=STEPS, *, half=False, backend=None, accumulate=1, resume=None
):
    """Losses and network of a loop of this kind, which saves itself at the end.

    ``resume`` is a step that was saved.
    """
    batch = BATCH // accumulate
    if kind == "trainer":
        options = {
            "bf16": half,
            "torch_compile_backend": backend,
            "gradient_accumulation_steps": accumulate,
        }
        options |= {
            "save_strategy": "steps",
            "save_steps": steps,
            "per_device_train_batch_size": batch,
        }
        start = None if resume is None else str(folder / f"checkpoint-{resume}")
        found, losses = trainer(folder, data, start, max_steps=steps, **options)
        return losses[resume or 0 :], found.model
    if kind == "lightning":
        options = {
            "precision": "bf16-mixed" if half else "32-true",
            "accumulate_grad_batches": accumulate,
        }
        start = None if resume is None else folder / f"{resume}.ckpt"
        net = network(backend)
        fit, module, losses = lightning(
            folder, data, batch, net=net, max_steps=steps, resume=start, **options
        )
        fit.save_checkpoint(folder / f"{steps}.ckpt")
        return losses, module.network
    options = {"mixed_precision": "bf16" if half else "no", "dynamo_backend": backend or "no"}
    start = None if resume is None else folder / f"step-{resume}"
    options["gradient_accumulation_steps"] = accumulate
    accelerator, net, losses = accelerated(data, batch, steps, start, **options)
    accelerator.save_state(folder / f"step-{steps}")
    save_process(PROCESS, folder / f"step-{steps}")
    return losses, accelerator.unwrap_model(net)


def saved(kind, folder, steps=STEPS):
    """Network and process as they are read again from the files of a loop of this kind."""
    if kind == "lightning":
        from ddlib.integrations.lightning import DiffusionModule

        module = DiffusionModule.load_from_checkpoint(folder / f"{steps}.ckpt", network=network())
        return module.network, module.process
    place = folder / f"{'checkpoint' if kind == 'trainer' else 'step'}-{steps}"
    net = network()
    net.load_state_dict(load_file(place / "model.safetensors"))
    return net, load_process(place)


def evaluated(net, data=DATA):
    net.eval()
    read = DataLoader(Positions(data, shuffle=False), 8, collate_fn=DiffusionCollator(PROCESS))
    return mean_bound(torch.cat([sequence_bounds(PROCESS, net, batch["labels"]) for batch in read]))


needs_compiler = pytest.mark.skipif(
    not shutil.which(os.environ.get("CXX", "g++")), reason="inductor needs a C++ compiler"
)
inductor = pytest.param(
    {"backend": "inductor", "data": EVEN},
    id="inductor",
    marks=needs_compiler,
)
each_loop = pytest.mark.parametrize("kind", ["trainer", "lightning", "accelerate"])


@each_loop
@pytest.mark.parametrize("options", [{}, {"half": True}, {"backend": "eager"}, inductor], ids=str)
def test_the_losses_are_those_of_a_plain_loop(kind, options, tmp_path):
    losses, net = trained(kind, tmp_path, **options)
    expected, same = plain(**options)
    assert losses == expected and torch.equal(weights(net), weights(same))


@needs_compiler
@each_loop
def test_a_network_compiled_by_inductor_trains_without_a_graph_break(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.network", partial(network, make=Small))
    torch.compiler.reset()  # of the loop before, which compiled the same code
    counters.clear()
    losses, _ = trained(kind, tmp_path, EVEN, backend="inductor")
    assert counters["stats"]["unique_graphs"] > 0 and not counters["graph_break"]
    assert counters["inductor"] or counters["aot_autograd"]["total"], "the back end was called"
    expected, _ = plain(EVEN)
    assert losses == pytest.approx(expected, rel=1e-5)


@each_loop
def test_accumulated_batches_are_one_step(kind, tmp_path):
    _, net = trained(kind, tmp_path, EVEN, accumulate=4)
    assert torch.allclose(weights(net), weights(plain(EVEN)[1]), atol=1e-5)


@each_loop
def test_weights_and_process_are_saved_and_loaded(kind, tmp_path):
    _, net = trained(kind, tmp_path)
    same, process = saved(kind, tmp_path)
    assert torch.equal(weights(same), weights(net)) and dd.values(process) == dd.values(PROCESS)
    samples = [
        dd.sample(PROCESS, each.eval(), (3, 6), steps=4, generator=seeded(1))
        for each in (net, same)
    ]
    assert torch.equal(*samples)


@each_loop
@pytest.mark.parametrize("stop, accumulate", [(2, 1), (5, 1), (2, 2)])
def test_a_resumed_loop_has_the_losses_of_a_plain_loop(kind, stop, accumulate, tmp_path):
    first, _ = trained(kind, tmp_path, steps=stop, accumulate=accumulate)  # 5 steps are an epoch
    rest, net = trained(kind, tmp_path, steps=stop + 2, accumulate=accumulate, resume=stop)
    losses, same = plain(steps=stop + 2)
    if accumulate == 1:
        assert first + rest == losses and torch.equal(weights(net), weights(same))
    else:
        whole = trained(kind, tmp_path / "whole", steps=stop + 2, accumulate=accumulate)
        assert first + rest == whole[0] and torch.equal(weights(net), weights(whole[1]))


def test_a_trainer_with_workers_has_the_losses_of_a_plain_loop(tmp_path):
    _, losses = trainer(tmp_path, dataloader_num_workers=2)
    assert losses == plain()[0]


def test_trainer_accumulates_tokens_and_evaluates_by_the_bound(tmp_path):
    from ddlib.integrations.transformers import SampleCallback

    options = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 4}
    found, losses = trainer(tmp_path, callbacks=[SampleCallback(PROCESS, (2, 6), 4)], **options)
    expected, net = plain()
    assert losses == pytest.approx(expected, rel=1e-5) and torch.allclose(
        weights(found.model), weights(net), atol=1e-4
    )
    metrics = found.evaluate()
    mean = evaluated(found.model)
    assert metrics["eval_bound"] == metrics["eval_loss"] == pytest.approx(mean.value)
    assert metrics["eval_bound_error"] == pytest.approx(mean.standard_error)
    text = (tmp_path / "samples" / f"step_{STEPS:08d}.txt").read_text()
    assert [len(line.split()) for line in text.splitlines()] == [6, 6]


class OfClass(Small):
    """Network given the class of each sequence."""

    def forward(self, z, t, label):
        return super().forward(z, t) + torch.eye(PROCESS.vocab_size)[label][:, None]


@pytest.mark.parametrize("kind", ["trainer", "lightning"])
def test_a_conditional_network_is_evaluated_with_its_labels(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.network", partial(network, make=OfClass))
    data = [{**item, "label": n % 5} for n, item in enumerate(DATA)]
    if kind == "trainer":
        found, _ = trainer(tmp_path, data)
        net = found.model
        value = found.evaluate()["eval_bound"]
    else:
        limits = {"val_check_interval": STEPS, "check_val_every_n_epoch": None}
        fit, module, _ = lightning(tmp_path, data, **limits)
        net = module.network
        value = float(fit.callback_metrics["val_bound"])
    label = torch.tensor([item["label"] for item in data])
    labels = DiffusionCollator(PROCESS)(list(Positions(DATA, shuffle=False)))["labels"]
    expected = mean_bound(sequence_bounds(PROCESS, partial(net.eval(), label=label), labels))
    assert value == pytest.approx(expected.value, rel=1e-5)


def test_trainer_does_not_resume_with_another_process(tmp_path):
    trained("trainer", tmp_path, steps=2)
    with pytest.raises(
        ValueError, match=r"of another process: hierarchy\.xi is 0\.9 there, 0\.8 here"
    ):
        trainer(
            tmp_path,
            resume=str(tmp_path / "checkpoint-2"),
            process=dd.presets.hdlm([0, 0, 1, 1, 2], xi=0.8),
        )


def test_lightning_validates_samples_and_saves_with_the_average_of_the_weights(tmp_path):
    from lightning.pytorch.callbacks import EMAWeightAveraging

    from ddlib.integrations.lightning import DiffusionModule, SampleCallback

    average = EMAWeightAveraging(decay=0.5)
    limits = {"val_check_interval": STEPS, "check_val_every_n_epoch": None}
    fit, module, found = lightning(
        tmp_path, callbacks=[SampleCallback((2, 6), 4), average], **limits
    )
    [losses, net], expected = (
        plain(),
        evaluated(module.network),
    )  # the average is in place after training
    assert found == losses and not torch.equal(weights(net), weights(module.network))
    assert float(fit.callback_metrics["val_bound"]) == pytest.approx(expected.value, rel=1e-6)
    assert float(fit.callback_metrics["val_bound_error"]) == pytest.approx(
        expected.standard_error, rel=1e-6
    )
    assert len((tmp_path / "samples" / f"step_{STEPS:08d}.txt").read_text().splitlines()) == 2
    path = tmp_path / "last.ckpt"
    fit.save_checkpoint(path, weights_only=True)
    loaded = DiffusionModule.load_from_checkpoint(path, network=network())
    assert torch.equal(weights(loaded.network), weights(module.network))
    assert dd.values(loaded.process) == dd.values(PROCESS)
    assert dd.values(loaded.loss.weighting) == dd.values(module.loss.weighting)
    assert loaded.sample((2, 6), 4).shape == (2, 6)
    with pytest.raises(ValueError, match="of another"):
        DiffusionModule.load_from_checkpoint(
            path, network=network(), process=dd.presets.hdlm([0, 0, 1, 1, 2])
        )


def test_lightning_loads_a_network_of_plain_values(tmp_path):
    from ddlib.integrations.lightning import DiffusionModule

    torch.manual_seed(0)
    dit = {
        "kind": "dit",
        "num_states": 9,
        "vocab_size": 5,
        "dim": 16,
        "depth": 1,
        "heads": 2,
        "cond_dim": 8,
    }
    fit, module, _ = lightning(tmp_path, net=dit)
    fit.save_checkpoint(tmp_path / "last.ckpt")
    loaded = DiffusionModule.load_from_checkpoint(tmp_path / "last.ckpt")
    assert torch.equal(weights(loaded), weights(module)) and dd.values(loaded.process) == dd.values(
        PROCESS
    )


def test_the_stock_trainer_has_the_losses_of_a_plain_loop(tmp_path):
    from transformers import Trainer, TrainingArguments

    net = network()
    options = {"remove_unused_columns": False, "train_sampling_strategy": "sequential"}
    stock = Trainer(
        net,
        TrainingArguments(str(tmp_path), **ARGUMENTS | options),
        DiffusionCollator(PROCESS, batch_size=BATCH),
        Positions(DATA, passes=2),
        compute_loss_func=DiffusionLoss(PROCESS, "clip:5"),
        optimizers=(optimizer(net), None),
    )
    stock.train()
    losses = [entry["loss"] for entry in stock.state.log_history if "loss" in entry]
    assert losses == plain()[0] and torch.equal(weights(net), weights(plain()[1]))


def test_a_batch_that_no_collator_made_is_refused_by_name():
    from ddlib.integrations.lightning import DiffusionModule

    module = DiffusionModule(network(), PROCESS)
    for step in (module.training_step, module.validation_step):
        with pytest.raises(
            ValueError,
            match="a batch has input_ids, label, must have labels: use a DiffusionDataMod",
        ):
            step({"input_ids": torch.zeros(2, 3), "label": torch.zeros(2)}, 0)


def test_a_loader_that_lightning_shuffles_is_refused():
    from ddlib.integrations.lightning import DiffusionModule

    module = DiffusionModule(network(), PROCESS)
    read = {"train_dataloader": loader(), "accumulate_grad_batches": 1}
    module.trainer = SimpleNamespace(world_size=2, **read)
    with pytest.raises(ValueError, match="Lightning shuffles the positions for 2 processes"):
        module.on_train_start()
    module.trainer = SimpleNamespace(world_size=1, **read)
    module.on_train_start()


def test_noise_or_a_loss_of_another_process_is_refused(tmp_path):
    from transformers import TrainingArguments

    from ddlib.integrations.lightning import DiffusionModule
    from ddlib.integrations.transformers import DiffusionTrainer

    other = dd.presets.hdlm([0, 0, 1, 1, 2], xi=0.8)
    args = TrainingArguments(str(tmp_path), use_cpu=True)
    for option, part in {
        "data_collator": DiffusionCollator(other),
        "compute_loss_func": DiffusionLoss(other),
    }.items():
        name = type(part).__name__
        with pytest.raises(
            ValueError,
            match=rf"the {name} is for another process: hierarchy\.xi is 0\.8 there, 0\.9",
        ):
            DiffusionTrainer(network(), args, process=PROCESS, **{option: part})
    module = DiffusionModule(network(), other)
    module.trainer = SimpleNamespace(
        world_size=1, train_dataloader=loader(), accumulate_grad_batches=1
    )
    with pytest.raises(
        ValueError,
        match=r"the DiffusionCollator is for another process: hierarchy\.xi is 0\.9 there",
    ):
        module.on_train_start()


WRONG = (
    r"batch_size of the DiffusionCollator is 8, must be 4, the sequences of one step over all "
    r"processes and accumul"
)


def test_a_collator_for_steps_of_another_size_is_refused(tmp_path):
    from lightning import Trainer
    from transformers import TrainingArguments

    from ddlib.integrations.lightning import DiffusionDataModule, DiffusionModule
    from ddlib.integrations.transformers import DiffusionTrainer

    args = TrainingArguments(
        str(tmp_path), use_cpu=True, per_device_train_batch_size=2, gradient_accumulation_steps=2
    )
    with pytest.raises(ValueError, match=WRONG):
        DiffusionTrainer(
            network(), args, process=PROCESS, data_collator=DiffusionCollator(PROCESS, batch_size=8)
        )
    derived = DiffusionTrainer(
        network(), args, process=PROCESS, data_collator=DiffusionCollator(PROCESS)
    )
    assert derived.data_collator.batch_size == 4
    fit = Trainer(accelerator="cpu", devices=1, max_steps=1, accumulate_grad_batches=2, **QUIET)
    collate = DiffusionCollator(PROCESS, batch_size=8)
    reading = {
        "datamodule": DiffusionDataModule(PROCESS, EVEN, batch_size=2, collator={"batch_size": 8}),
        "train_dataloaders": DataLoader(Positions(EVEN), 2, collate_fn=collate),
    }
    for name, read in reading.items():
        with pytest.raises(ValueError, match=WRONG):
            fit.fit(DiffusionModule(network(), PROCESS), **{name: read})


def shard_on_cpus():
    """Lets accelerate, and so the Trainer, shard on CPUs: torch does, but they leave out a plugin
    of FSDP there.
    """
    from accelerate.state import AcceleratorState
    from accelerate.utils import DistributedType

    made = AcceleratorState.__init__

    def make(self, *args, fsdp_plugin=None, **options):
        made(self, *args, fsdp_plugin=fsdp_plugin, **options)
        if fsdp_plugin is not None:
            self._shared_state |= {
                "distributed_type": DistributedType.FSDP,
                "fsdp_plugin": fsdp_plugin,
            }

    AcceleratorState.__init__ = make


def divided(kind, folder, sharded):
    """Weights and bound of a loop on one of several processes, which reads its part of each
    batch.
    """
    if kind == "trainer":
        from ddlib.integrations.transformers import SampleCallback

        options = {"ddp_backend": "gloo"}
        if sharded:
            options = {
                "fsdp": True,
                "fsdp_config": {"fsdp_version": 2, "state_dict_type": "SHARDED_STATE_DICT"},
            }
        options |= {"per_device_train_batch_size": 2, "save_strategy": "steps", "save_steps": STEPS}
        options |= {"eval_strategy": "steps", "eval_steps": STEPS}
        found, _ = trainer(folder, callbacks=[SampleCallback(PROCESS, (2, 6), 4)], **options)
        return weights(found.model), found.evaluate()["eval_bound"]
    if kind == "lightning":
        from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy

        from ddlib.integrations.lightning import SampleCallback

        gloo = {"process_group_backend": "gloo"}
        mesh = {
            "data_parallel_size": 2,
            "tensor_parallel_size": 1,
            "save_distributed_checkpoint": False,
        }
        strategy = ModelParallelStrategy(**mesh, **gloo) if sharded else DDPStrategy(**gloo)
        options = {
            "val_check_interval": STEPS,
            "check_val_every_n_epoch": None,
            "strategy": strategy,
            "devices": 2,
        }
        fit, module, _ = lightning(folder, EVEN, 2, [SampleCallback((2, 6), 4)], **options)
        fit.save_checkpoint(folder / f"{STEPS}.ckpt")
        return weights(module.network), float(fit.callback_metrics["val_bound"])
    from accelerate import FullyShardedDataParallelPlugin

    plugin = FullyShardedDataParallelPlugin(fsdp_version=2) if sharded else None
    accelerator, net, _ = accelerated(EVEN, 2, fsdp_plugin=plugin)
    read = DataLoader(Positions(EVEN, shuffle=False), 4, collate_fn=DiffusionCollator(PROCESS))
    rows = [
        sequence_bounds(PROCESS, net.eval(), batch["labels"]) for batch in accelerator.prepare(read)
    ]
    return weights(net), mean_bound(accelerator.gather_for_metrics(torch.cat(rows))).value


def worker(rank, kind, sharded, port, folder):
    """One of two processes that train together."""
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": "2",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": "2",
        "NODE_RANK": "0",
    }
    warnings.simplefilter("ignore")
    if sharded:
        shard_on_cpus()
    torch.save(divided(kind, folder, sharded), folder / f"{rank}.pt")


@each_loop
@pytest.mark.parametrize("sharded", [False, True])
def test_two_processes_train_as_one(kind, sharded, tmp_path):
    import lightning  # noqa: F401  before the fork
    import transformers.trainer  # noqa: F401

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = {"nprocs": 2, "start_method": "fork", "join": False, "daemon": True}
    started = start_processes(worker, (kind, sharded, port, tmp_path), **options)
    end = time() + 120
    while not started.join(1):
        assert time() < end, "one process waits for the other"
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    data = DATA if kind == "trainer" else EVEN
    [_, net] = plain(data)
    for flat, bound in found:
        assert torch.allclose(flat, weights(net), atol=1e-4)
        assert bound == pytest.approx(evaluated(deepcopy(net), data).value, rel=1e-4)
    assert torch.equal(found[0][0], found[1][0]) and found[0][1] == found[1][1]
    if kind != "accelerate":
        assert len((tmp_path / "samples" / f"step_{STEPS:08d}.txt").read_text().splitlines()) == 2
        process = (
            saved(kind, tmp_path)[1]
            if kind == "lightning"
            else load_process(tmp_path / f"checkpoint-{STEPS}")
        )
        assert dd.values(process) == dd.values(PROCESS)


def test_samples_leave_every_module_in_its_mode():
    process = dd.presets.mdlm(4)
    network = torch.nn.Sequential(
        torch.nn.Embedding(5, 8), torch.nn.Dropout(), torch.nn.Linear(8, 4)
    )
    network.train()
    network[1].eval()
    called = network.forward
    network.forward = lambda z, t: called(z)
    before = [module.training for module in network.modules()]
    draw_samples(process, network, (1, 3), steps=2)
    assert [module.training for module in network.modules()] == before
    with pytest.raises(ValueError, match="steps is 0"):
        draw_samples(process, network, (1, 3), steps=0)
    assert [module.training for module in network.modules()] == before


def test_an_evaluation_without_positions_is_refused():
    process = dd.presets.mdlm(4)
    labels = DiffusionCollator(process)([{"input_ids": [1, 2, 3]}])["labels"]
    with pytest.raises(ValueError, match=r"labels have no position.* wrap the data"):
        sequence_bounds(process, lambda z, t: torch.zeros(*z.shape, 4), labels)


@pytest.mark.parametrize("stated", [True, False])
def test_a_module_trains_validates_and_samples_with_one_meaning_of_the_logits(stated):
    from ddlib.integrations.lightning import DiffusionModule

    process = dd.presets.mdlm(4)
    inner = torch.nn.Embedding(5, 4)
    if stated:
        inner.parameterization = "posterior"
    inner.forward = lambda z, t, _called=inner.forward: _called(z)
    module = DiffusionModule(inner, process, parameterization=None if stated else "posterior")
    assert module.loss.parameterization == "posterior"
    batch = DiffusionCollator(process)([{"input_ids": [1, 2, 3], "position": 0}])
    module.validation_step(batch, 0)
    expected = sequence_bounds(process, inner, batch["labels"], parameterization="posterior")
    assert torch.equal(module._rows[0], expected)


class Stated(Small):
    """Network whose logits have a stated meaning."""

    parameterization = "posterior"


def test_a_trainer_trains_and_evaluates_with_the_meaning_of_the_network(tmp_path):
    from transformers import TrainingArguments

    from ddlib.integrations.transformers import DiffusionTrainer

    args = TrainingArguments(str(tmp_path), **ARGUMENTS)
    options = {"process": PROCESS, "train_dataset": EVEN, "eval_dataset": EVEN}
    net = network(make=Stated)
    made = DiffusionTrainer(net, args, **options)
    batch = made.data_collator([made.train_dataset[n] for n in range(BATCH)])
    logits = net(batch["z"], batch["t"])
    losses = {
        meaning: DiffusionLoss(PROCESS, parameterization=meaning)(logits, batch["labels"])
        for meaning in ("posterior", "cavity")
    }
    assert made.compute_loss_func(logits, batch["labels"]) == losses["posterior"]
    assert losses["posterior"] != losses["cavity"]
    value = made.evaluate()["eval_bound"]
    assert value == pytest.approx(evaluated(net, EVEN).value, rel=1e-5)
    rule = "parameterization of compute_loss_func is 'cavity', must be 'posterior', that of the net"
    with pytest.raises(ValueError, match=rule):
        DiffusionTrainer(net, args, compute_loss_func=DiffusionLoss(PROCESS, "clip:5"), **options)
    posterior = DiffusionLoss(PROCESS, parameterization="posterior")
    with pytest.raises(ValueError, match="is 'posterior', must be 'cavity', that of the network"):
        DiffusionTrainer(network(make=Small), args, compute_loss_func=posterior, **options)
    DiffusionTrainer(net, args, compute_loss_func=posterior, **options)


class Open(Small):
    """Network whose call takes any keyword."""

    def forward(self, z, t, **options):
        assert not options
        return super().forward(z, t)


def test_a_trainer_passes_nothing_but_the_batch_to_a_network_of_any_keyword(tmp_path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.network", partial(network, make=Open))
    options = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 4}
    _, losses = trainer(tmp_path, EVEN, **options)
    assert losses == pytest.approx(plain(EVEN)[0], rel=1e-5)


class Stepping(Small):
    """Network that keeps the numbers of the steps at which it was called in training."""

    def __init__(self):
        super().__init__()
        self.steps = []

    def at_step(self, step):
        self.step = step

    def forward(self, z, t):
        if self.training:
            self.steps.append(self.step)
        return super().forward(z, t)


@pytest.mark.parametrize("kind", ["trainer", "lightning"])
def test_a_network_is_given_the_number_of_each_step(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.network", partial(network, make=Stepping))
    _, net = trained(kind, tmp_path, EVEN, steps=2, accumulate=2)
    assert net.steps == [0, 0, 1, 1]
    _, net = trained(kind, tmp_path, EVEN, steps=3, accumulate=2, resume=2)
    assert net.steps == [2, 2]
