"""Rows that grow up to a capacity and then replace the oldest."""

from __future__ import annotations

import torch

from harl.buffers.ring import GrowingRing


def numbers(*values: int) -> dict[str, torch.Tensor]:
    return {"a": torch.tensor(values), "b": torch.tensor(values).float().unsqueeze(1) / 2}


def there(ring: GrowingRing) -> list[int]:
    rows = ring.rows(slice(None))
    assert torch.equal(rows["a"].float().unsqueeze(1) / 2, rows["b"])
    return sorted(rows["a"].tolist())


def test_new_rows_replace_the_oldest() -> None:
    ring = GrowingRing(5)
    assert len(ring) == 0
    ring.add(numbers(1, 2, 3))
    assert there(ring) == [1, 2, 3]
    ring.add(numbers(4, 5, 6, 7))
    assert there(ring) == [3, 4, 5, 6, 7]
    ring.add(numbers(*range(10, 30)))
    assert there(ring) == [25, 26, 27, 28, 29]
    ring.add(numbers())
    assert len(ring) == 5


def test_memory_grows_with_the_rows() -> None:
    ring = GrowingRing(10**9)
    ring.add(numbers(*range(1000)))
    ring.add(numbers(*range(1000, 3000)))
    assert there(ring) == list(range(3000))


def test_dropped_rows_make_room_for_new_ones() -> None:
    ring = GrowingRing(4)
    ring.add(numbers(1, 2, 3, 4))
    ring.add(numbers(5))
    ring.keep(ring.column("a") != 3)
    assert there(ring) == [2, 4, 5]
    ring.add(numbers(6, 7))
    assert there(ring) == [4, 5, 6, 7]
    ring.keep(torch.zeros(4, dtype=torch.bool))
    assert len(ring) == 0
    ring.add(numbers(8))
    assert there(ring) == [8]


def test_state_keeps_every_row_in_its_place() -> None:
    for extra in range(8):
        ring, copy = GrowingRing(5), GrowingRing(5)
        for value in range(extra):
            ring.add(numbers(value))
        copy.set_state(ring.get_state())
        for more in range(100, 103):
            if extra:
                assert ring.column("a").tolist() == copy.column("a").tolist()
            ring.add(numbers(more))
            copy.add(numbers(more))


def test_state_of_a_larger_ring_gives_its_newest_rows() -> None:
    ring, small = GrowingRing(5), GrowingRing(2)
    ring.add(numbers(*range(7)))
    small.set_state(ring.get_state())
    assert there(small) == [5, 6]
    large = GrowingRing(9)
    large.set_state(ring.get_state())
    large.add(numbers(7))
    assert there(large) == [2, 3, 4, 5, 6, 7]
