"""What a loader tells of its loads."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from services.common.errors import CorruptData
from services.common.ids import ArtifactId
from services.loader.metrics import LoaderMetrics, Stage, export_live
from services.loader.place import Holding, PlaceKind
from services.loader.reading import HowRead, ReadReport
from services.loader.residents import Prepared, Residents
from services.loader.traffic import Traffic
from services.loader.weight_file import ReadMode
from tests.scrape import read


def no_op() -> None: ...


def test_a_stage_that_fails_is_measured_too() -> None:
    """One observation for each time that it was entered."""
    registry = CollectorRegistry()
    metrics = LoaderMetrics(registry)
    with pytest.raises(CorruptData), metrics.stage(Stage.VERIFY):
        raise CorruptData("wrong")
    with metrics.stage(Stage.FETCH):
        metrics.read(4096)
    told = read(registry)
    assert {"verify": 1, "fetch": 1} == told.by("halogen_load_stage_seconds_count", "stage")
    assert 4096 == told.value("halogen_read_bytes_total")


def test_resident_bytes_follow_what_is_kept() -> None:
    """By place and kind of page; nothing is told of what has gone."""
    registry, residents = CollectorRegistry(), Residents(keep_s=0)
    export_live(registry, residents, ReadReport(), Traffic(""))
    for name, kind, size_bytes in (
        ("a", PlaceKind.DEV_SHM, 3),
        ("b", PlaceKind.DEV_SHM, 4),
        ("c", PlaceKind.FILE, 5),
    ):
        holding = Holding(kind=kind, mapped_path=name, size_bytes=size_bytes, release=no_op, let_go=no_op)
        residents.add(
            Prepared(
                artifact_id=ArtifactId(name), path=name, identity="", holding=holding, huge_pages=name == "b"
            ),
            now_s=0,
        )
    assert {"dev_shm": 7, "file": 5} == read(registry).by("halogen_resident_bytes", "place")
    assert {"dev_shm": 4} == read(registry).by("halogen_resident_huge_bytes", "place")
    residents.remove(ArtifactId("c"))
    assert {"dev_shm": 7} == read(registry).by("halogen_resident_bytes", "place")
    assert 2 == read(registry).value("halogen_resident_artifacts")


def test_how_weights_are_read_is_told() -> None:
    """The mode of the last read, none before the first; and whether reads hold back."""
    registry, report, traffic = CollectorRegistry(), ReadReport(), Traffic("")
    export_live(registry, [], report, traffic)
    assert {} == read(registry).by("halogen_read_mode", "mode")
    assert 0 == read(registry).value("halogen_live_traffic")
    report.tell(HowRead(ReadMode.BUFFERED, "Invalid argument"), "")
    traffic.is_live = True
    assert {"buffered": 1} == read(registry).by("halogen_read_mode", "mode")
    assert 1 == read(registry).value("halogen_live_traffic")
