"""How well one number of a unit tells another: rank correlation, and cuts that tell levels apart. Pure.

Every function works on rows, (resample, unit), so that `intervals.bootstrap` can call it on many resamples at once.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy
from numpy.typing import NDArray

from counterpoint.intervals import Interval, bootstrap

Array = NDArray[numpy.float64]
Flags = NDArray[numpy.bool_]


def over_units(statistic: Callable[..., Array], *columns: Array | Flags) -> Interval:
    """A statistic of several numbers a unit, with its bootstrap interval over units drawn whole."""

    def drawn(places: Array, axis: int = -1) -> Array:
        where = numpy.atleast_2d(places).astype(int)
        return numpy.squeeze(statistic(*(column[where] for column in columns)))

    return bootstrap(numpy.arange(len(columns[0])), 0, drawn)


def ranks(values: Array) -> Array:
    """The rank of each value in its row, from 0; equal values share the average."""
    order = numpy.argsort(values, axis=-1, kind="stable")
    inside = numpy.take_along_axis(values, order, -1)
    count = values.shape[-1]
    begins = numpy.ones(values.shape, dtype=bool)
    begins[..., 1:] = inside[..., 1:] != inside[..., :-1]
    ends = numpy.ones(values.shape, dtype=bool)
    ends[..., :-1] = begins[..., 1:]
    places = numpy.broadcast_to(numpy.arange(count), values.shape)
    first = numpy.maximum.accumulate(numpy.where(begins, places, 0), axis=-1)
    backwards = numpy.where(ends, places, count)[..., ::-1]
    last = numpy.minimum.accumulate(backwards, axis=-1)[..., ::-1]
    found = numpy.empty(values.shape)
    numpy.put_along_axis(found, order, (first + last) / 2, -1)
    return found


def spearman(one: Array, other: Array) -> Array:
    """Rank correlation of each row; 0 where all values of a row are equal."""
    a, b = (ranks(values) - (values.shape[-1] - 1) / 2 for values in (one, other))
    scale = numpy.sqrt((a**2).sum(-1) * (b**2).sum(-1))
    return numpy.divide((a * b).sum(-1), scale, out=numpy.zeros(scale.shape), where=scale > 0)


def share_where(hit: Flags, among: Flags) -> Array:
    """The share of hits among some units of each row; 0 where there are none."""
    count = among.sum(-1)
    return numpy.divide((hit & among).sum(-1), count, out=numpy.zeros(count.shape), where=count > 0)


def balanced_accuracy(said: Flags, true: Flags) -> Array:
    """The mean of sensitivity and specificity."""
    return (share_where(said, true) + share_where(~said, ~true)) / 2


def best_cut(values: Array, true: Flags) -> Array:
    """The cut with the best balanced accuracy when values from it on are called true; the first of several."""
    order = numpy.argsort(values, axis=-1, kind="stable")
    inside, flags = numpy.take_along_axis(values, order, -1), numpy.take_along_axis(true, order, -1)
    positives, negatives = (flags.sum(-1, keepdims=True), (~flags).sum(-1, keepdims=True))
    below_true, below_false = flags.cumsum(-1), (~flags).cumsum(-1)
    gained = below_false / numpy.maximum(negatives, 1) - below_true / numpy.maximum(positives, 1)
    gained[..., :-1][inside[..., 1:] == inside[..., :-1]] = -numpy.inf
    gained[..., -1] = -numpy.inf
    at = numpy.minimum(gained.argmax(-1), values.shape[-1] - 2)[..., None]
    both = numpy.take_along_axis(inside, at, -1) + numpy.take_along_axis(inside, at + 1, -1)
    return numpy.asarray(both[..., 0] / 2)
