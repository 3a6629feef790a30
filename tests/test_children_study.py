"""Study of outputs over children: a step of a run at tiny sizes."""

from argparse import Namespace

import torch

from studies.children.run import EqualCompute, Text, Training


def test_a_step_changes_the_weights_and_their_average(tmp_path):
    study = EqualCompute.tiny()
    work = tmp_path / "work"
    study.inputs(work)
    study.prepare(Namespace(work=work, tokens=None))
    run = Training("HDLM, child logits", work, 0, Text(work, study))
    before = {name: one.detach().clone() for name, one in run.model.net.named_parameters()}
    for _ in range(2):
        run.step(2)
    assert run.steps == 2
    changed = [
        name for name, one in run.model.net.named_parameters() if (one != before[name]).any()
    ]
    assert changed
    for name in changed:
        assert not torch.equal(run.average.weights[name], before[name])
