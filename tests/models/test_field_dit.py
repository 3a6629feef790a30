"""DiT of several alphabets."""

import pytest
import torch
from zoo.calls import seeded
from zoo.products import PRODUCTS, parts, tokens

import ddlib as dd
from ddlib.processes import Masked, Product
from ddlib.schedules import Linear
from ddlib_models import FieldDiT

every_product = pytest.mark.parametrize("product", PRODUCTS.values(), ids=PRODUCTS)


def small(product, **options):
    torch.manual_seed(0)
    length = len(product.arguments()["fields"])
    options = {"positions": "learned", "shape": (length,)} | options
    return FieldDiT(product.sizes, 16, 2, 2, cond_dim=8, **options)


def trained(product, steps=1):
    model = small(product)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3, generator=seeded(parameter.numel()))
    return model.eval()


@every_product
def test_a_fresh_network_is_uniform_over_each_alphabet(product):
    x = tokens(product, 6)
    t = torch.rand(6, generator=seeded())
    z = product.sample(x, t, seeded(1))
    model = small(product)
    assert model(z, t).shape == (6, x.shape[1], product.vocab_size)
    for _, columns, process, first in parts(product):
        own = z[:, columns] - first
        uniform = torch.zeros(6, len(columns), process.vocab_size)
        expected = dd.nelbo(process, uniform, x[:, columns], own, t)
        got = dd.nelbo(product, model(z, t), x, z, t)[:, columns]
        assert torch.allclose(got, expected, rtol=1e-5, atol=1e-6)


@every_product
def test_every_field_has_its_own_output_layer(product):
    model = trained(product)
    x = tokens(product, 3)
    t = torch.rand(3, generator=seeded())
    z = product.sample(x, t, seeded(1))
    features = model.features(z, t)
    layers = model.head.weight.split([size for _, size in product.sizes])
    biases = model.head.bias.split([size for _, size in product.sizes])
    for k, columns, process, _ in parts(product):
        logits = model(z, t)[:, columns, : process.vocab_size]
        expected = features[:, columns] @ layers[k].T + biases[k]
        assert torch.allclose(logits, expected, atol=1e-5)


@every_product
@torch.no_grad()
def test_it_is_a_denoiser_of_samplers_and_bounds(product):
    model = trained(product)
    x = tokens(product, 4)
    drawn = dd.sample(product, model, x.shape, steps=6, generator=seeded())
    product.check_inputs(x=drawn)
    assert dd.bound(product, model, x, seeded()).total.isfinite().all()
    pace = dd.paces.RandomOrder()
    assert dd.bound(product, model, x, seeded(), pace=pace).total.isfinite().all()


def test_it_learns_a_dependence_between_alphabets():
    """Two columns, of which the second is a function of the first."""
    product = Product({"a": Masked(4, Linear()), "b": Masked(2, Linear())}, ["a", "b"])
    model = small(product)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    generator = seeded(3)
    for _ in range(150):
        a = torch.randint(4, (64,), generator=generator)
        x = torch.stack([a, a % 2], 1)
        t = torch.rand(64, generator=generator)
        z = product.sample(x, t, generator)
        loss = dd.training_loss(product, model(z, t), x, z, t, dd.weightings.Clip(4.0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    x = torch.stack([torch.arange(4), torch.arange(4) % 2], 1)
    known = torch.tensor([[True, False]]).expand(4, 2)
    with torch.no_grad():
        conditional = dd.likelihood(product, model, x, given=known).log_likelihood.exp()
        joint = dd.likelihood(product, model, x).log_likelihood.exp()
    assert (conditional > 0.9).all() and float(joint.sum()) > 0.9


def test_it_is_saved_and_loaded(tmp_path):
    product = PRODUCTS["four"]
    model = trained(product)
    model.save_pretrained(tmp_path)
    again = FieldDiT.from_pretrained(tmp_path).eval()
    z = product.tokens_as_states(tokens(product, 2))
    t = torch.rand(2)
    assert torch.equal(again(z, t), model(z, t))


BAD = {
    "none": ([], "fields is empty"),
    "one number": ([(3,)], r"fields\[0\] is \(3,\): must be the numbers of states and of tokens"),
    "more tokens than states": ([(3, 3), (2, 4)], r"fields\[1\] is \(2, 4\)"),
    "no token": ([(3, 0)], r"fields\[0\] is \(3, 0\)"),
}


@pytest.mark.parametrize(("fields", "message"), BAD.values(), ids=BAD)
def test_bad_fields_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        FieldDiT(fields, 16, 1, 2)
