"""What packages with exits take more: graphs, and the rows between them."""

from __future__ import annotations

from edge_rt.memory.device import this_device
from edge_rt.memory.plan import Request, make_plan
from edge_rt.memory.shape import shape_of
from edge_rt.memory.terms import hidden_bytes
from edge_rt.package.reader import open_package
from tests.helpers.segmented import EXITS


def plans_of(pair, **options):
    for path in (pair.whole, pair.cut):
        package = open_package(path)
        yield make_plan(shape_of(package.manifest, package.id), this_device(), Request(ctx=256, **options))


def terms_of(plan):
    return {term.name: term.bytes for term in plan.terms}


def test_what_is_more(segmented):
    whole, cut = plans_of(segmented, spec="off")
    assert cut.shape.segments == len(EXITS) + 1
    assert cut.shape.graphs == len(EXITS) + 2
    assert whole.shape.graphs == 1
    more = {name: size - terms_of(whole)[name] for name, size in terms_of(cut).items()}
    session = 192 * 1024 * (cut.shape.graphs - 1) + hidden_bytes(cut.shape, cut.choice)
    # Two units of 544 bytes for each of 27 times 16 rows: the embedding, which is the head as well.
    table = 27 * 2 * 544
    assert table == max(place.length for place in open_package(segmented.cut).tensors["head.onnx"].values())
    assert {name: size for name, size in more.items() if size} == {"session": session}
    assert hidden_bytes(cut.shape, cut.choice) == 4 * 64 * 2 * cut.choice.largest_pass
    assert hidden_bytes(whole.shape, whole.choice) == 0


def test_few_rows_have_a_place_behind_every_segment(segmented):
    _, cut = plans_of(segmented, spec="off", prefill_chunk=16)
    assert hidden_bytes(cut.shape, cut.choice) == 4 * 64 * 64 * len(EXITS)


def test_exits_need_no_tables(segmented):
    _, cut = plans_of(segmented, spec="exit")
    assert cut.choice.spec == "exit"
    assert cut.choice.draft_max > 0
    assert (cut.choice.suffix_tokens, cut.choice.recycling_contexts) == (0, 0)
