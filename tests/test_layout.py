"""Named tensors and one flat vector, back and forth."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from dubito.layout import ALIGNED, Layout, aligned, like

SHAPES = st.lists(st.lists(st.integers(1, 3), max_size=3).map(tuple), min_size=1, max_size=4)


@given(SHAPES, st.lists(st.integers(1, 3), max_size=2).map(tuple))
def test_split_and_join_are_inverse(shapes, lead):
    layout = Layout(tuple(f"p{i}" for i in range(len(shapes))), tuple(shapes))
    theta = torch.randn(*lead, layout.size)
    parts = layout.split(theta)
    assert {n: tuple(t.shape) for n, t in parts.items()} == {
        n: lead + s for n, s in zip(layout.names, shapes, strict=True)
    }
    assert torch.equal(layout.join(parts), theta)
    assert all(torch.equal(theta[..., layout.spans[n]].reshape(parts[n].shape), parts[n]) for n in layout.names)


def test_parts_are_views_and_gradients_flow_through():
    layout = Layout.of({"w": torch.empty(2, 2), "b": torch.empty(())})
    theta = torch.zeros(5)
    layout.split(theta)["w"].fill_(1)
    assert theta.tolist() == [1, 1, 1, 1, 0]
    leaf = torch.randn(3, 5, requires_grad=True)
    layout.split(leaf)["b"].sum().backward()
    assert leaf.grad.tolist() == [[0, 0, 0, 0, 1]] * 3


def test_a_stretch_of_a_longer_vector_splits_too():
    layout = Layout.of({"w": torch.empty(2, 3)})
    longer = torch.randn(4, 7)
    assert torch.equal(layout.split(longer[:, :6])["w"], longer[:, :6].reshape(4, 2, 3))


def test_layouts_add_up_and_may_be_empty():
    both = Layout.of({"a": torch.empty(2)}) + Layout.of({"b": torch.empty(1, 2)})
    assert both.names == ("a", "b") and both.size == 4 and both.spans["b"] == slice(2, 4)
    empty = Layout.of({})
    assert empty.size == 0 and empty.split(torch.empty(3, 0)) == {}


def test_rows_on_a_gpu_begin_at_round_addresses():
    rows = torch.empty(3, ALIGNED + 1, device="meta")
    assert aligned(rows).stride() == (2 * ALIGNED, 1)
    assert aligned(rows).shape == rows.shape
    assert aligned(rows[:1]).stride(1) == 1
    whole = torch.empty(3, ALIGNED, device="meta")
    assert aligned(whole) is whole


def test_a_copy_lies_in_memory_as_another_tensor():
    place = torch.zeros(3, 8)[:, :5]
    copy = like(place, torch.arange(15.0).view(3, 5))
    assert copy.stride() == (8, 1)
    assert torch.equal(copy, torch.arange(15.0).view(3, 5))
    assert not place.any()
