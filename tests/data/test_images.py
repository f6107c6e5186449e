"""Image folders: which files count, how they are split, decoded and packed; by one process and by real ranks."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hvdtrain.data import decode as decoding
from hvdtrain.data.decode import Unreadable, decode
from hvdtrain.data.folders import scan, split
from hvdtrain.data.memory import Batches
from hvdtrain.data.packed import Rows, cache_folder, pack
from hvdtrain.data.packing import chunks, decode_files
from hvdtrain.errors import UserError
from hvdtrain.world import World, detect
from tests.data import images
from tests.worlds import Ended, run_world


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> World:
    monkeypatch.setenv("HVDTRAIN_CACHE", str(tmp_path / "cache"))
    return detect()


def gather(value: object) -> list[object]:
    return [value]


def test_a_split_is_stratified_and_covers_all() -> None:
    labels = np.repeat(np.arange(6), [80, 827, 119, 5, 2, 1])
    train, validation = split(labels, 0.2, seed=4)
    assert np.array_equal(np.sort(np.concatenate([train, validation])), np.arange(len(labels)))
    assert np.bincount(labels[validation], minlength=6).tolist() == [16, 165, 24, 1, 1, 0]
    again = split(labels, 0.2, seed=4)
    assert np.array_equal(train, again[0])
    assert not np.array_equal(validation, split(labels, 0.2, seed=5)[1])
    with pytest.raises(UserError, match="is not between 0 and 1"):
        split(labels, 1.5)


def test_odd_images_come_out_right_and_bad_ones_say_why(tmp_path: Path) -> None:
    bad = images.nasty(tmp_path)
    plain = images.picture(0, 4, 99)
    plain.save(tmp_path / "plain.png")
    expected = decode(tmp_path / "plain.png", 32).astype(int)
    for name, grey in (
        ("n_cmyk.jpg", False),
        ("n_alpha.png", False),
        ("n_palette.png", False),
        ("n_grey.jpg", True),
        ("n_sixteen.png", True),
    ):
        pixels = decode(tmp_path / name, 32)
        assert pixels.shape == (32, 32, 3)
        assert pixels.dtype == np.uint8
        wanted = (
            np.asarray(Image.fromarray(expected.astype(np.uint8)).convert("L").convert("RGB")) if grey else expected
        )
        assert np.abs(pixels.astype(int) - wanted).mean() < 12, name
    turned = decode(tmp_path / "n_turned.jpg", 40)
    assert turned[10, 20, 0] > 200  # the left half, red, is now on top
    assert turned[30, 20, 2] > 200
    for name, reason in bad.items():
        with pytest.raises(Unreadable, match=reason):
            decode(tmp_path / name, 32)


@pytest.mark.parametrize("shape", [(64, 64), (100, 70), (300, 200), (40, 50)])
def test_the_quick_way_for_jpegs_gives_what_pillow_does(
    shape: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where libjpeg-turbo is asked directly; greyscale, and with EXIF that turns nothing."""
    pytest.importorskip("simplejpeg")
    exif = Image.Exif()
    exif[0x0112] = 1
    smooth = images.picture(1, 4, 5, shape).resize((8, 8)).resize(shape, Image.Resampling.BICUBIC)
    smooth.save(tmp_path / "plain.jpg", quality=95)
    smooth.convert("L").save(tmp_path / "grey.jpg", quality=95)
    smooth.save(tmp_path / "exif.jpg", quality=95, exif=exif)
    for file in sorted(tmp_path.iterdir()):
        assert decoding._plain_jpeg(file.read_bytes(), np.empty((64, 64, 3), np.uint8)), file.name
        quick = decode(file, 64).astype(int)
        with monkeypatch.context() as without:
            without.setattr(decoding, "simplejpeg", None)
            slow = decode(file, 64).astype(int)
        # Of larger images both take the scales of libjpeg-turbo, but Pillow smoothes once more.
        assert np.abs(quick - slow).max() <= (0 if shape == (64, 64) else 8), file.name
        assert np.abs(quick - slow).mean() < 1, file.name


def test_a_full_disk_ends_the_packing(tmp_path: Path) -> None:
    root = images.tree(tmp_path / "t", classes=2, each=40)
    paths = sorted(root.rglob("*.jpg"))
    with pytest.raises(OSError, match="No space left"):
        decode_files(paths, chunks(len(paths), 0, 1), 16, Path("/dev/full"), 2, lambda done: None)


def test_memory_of_batches_comes_back_when_nothing_looks_at_it() -> None:
    memory = Batches()
    first = memory.empty((4, 8, 8, 3))
    place = first.ctypes.data
    part = first[1:].reshape(-1)[5:]
    first[...] = 7
    del first
    other = memory.empty((4, 8, 8, 3))
    other[...] = 9
    assert (part == 7).all(), "a view's memory was given away"
    del part
    again = memory.empty((3, 8, 8, 3))
    assert again.ctypes.data == place
    assert again.shape == (3, 8, 8, 3)
    assert memory.empty((40, 8, 8, 3)).size == 40 * 192


def test_packed_images_are_the_decoded_ones_and_stay(
    alone: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = images.tree(tmp_path / "a tree")
    bad = images.nasty(root / "001.class 1")
    found = scan(root)
    assert found.classes == tuple(f"00{n}.class {n}" for n in range(4))
    assert len(found.files) == 48 + 9
    packed = pack(found, 32, alone, gather)
    assert sorted(Path(name).name for name, _ in packed.bad) == sorted(bad)
    assert len(packed.good) == 48 + 6
    for index in packed.good:
        assert np.array_equal(packed.images[index], decode(root / found.files[index], 32))
    said = capsys.readouterr().out
    assert "3 of 57 images cannot be read and are left out:" in said
    assert "1 files are no images by their names" in said
    file = next((tmp_path / "cache").rglob("*.u8"))
    before = file.stat().st_mtime_ns
    pack(found, 32, alone, gather)
    assert file.stat().st_mtime_ns == before, "decoded twice"
    rows = Rows(packed.images, packed.good[5:9])
    assert rows.shape == (4, 32, 32, 3)
    assert np.array_equal(rows[np.array([2, 0])], packed.images[packed.good[[7, 5]]])
    # A damaged file is noticed, and another tree has another file.
    with open(file, "r+b") as handle:
        handle.seek(1000)
        handle.write(b"damage")
    again = pack(found, 32, alone, gather)
    assert np.array_equal(again.images[0], decode(root / found.files[0], 32))
    os.utime(root / found.files[0], ns=(1, 1))
    assert scan(root).key != found.key


def test_too_many_bad_files_and_no_room_are_clear(alone: World, tmp_path: Path) -> None:
    root = images.tree(tmp_path / "t", classes=2, each=3)
    images.nasty(root / "000.class 0")
    with pytest.raises(
        UserError,
        match=r"3 of 15 images in .* cannot be read; 2 may be \(--max-bad\):\n  000.class 0/n_cut.jpg: .*Truncated",
    ):
        pack(scan(root), 16, alone, gather, max_bad=2)
    with pytest.raises(UserError, match=r"the packed images need [\d.]+ GB, and .* Set HVDTRAIN_CACHE"):
        pack(scan(root), 2_000_000, alone, gather)


@pytest.mark.parametrize("max_bad", [None, 100])
def test_a_tree_without_a_readable_image_is_refused(max_bad: int | None, alone: World, tmp_path: Path) -> None:
    """However many may be unreadable: nothing would be left to train on."""
    root = images.tree(tmp_path / "t", classes=2, each=3)
    for path in root.rglob("*.jpg"):
        path.write_bytes(b"no picture")
    with pytest.raises(UserError, match=r"6 of 6 images in .* cannot be read:\n  000.class 0/0000.jpg: "):
        pack(scan(root), 16, alone, gather, max_bad=max_bad)


def test_a_class_without_a_readable_image_is_named(
    alone: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = images.tree(tmp_path / "t", classes=3, each=2)
    (root / "empty").mkdir()
    for path in (root / "001.class 1").iterdir():
        path.write_bytes(b"no picture")
    pack(scan(root), 16, alone, gather)
    said = capsys.readouterr().out
    assert "1 of 4 classes have no image: empty\n" in said
    assert "1 of 4 classes have none that can be read: 001.class 1\n" in said


@pytest.mark.parametrize("labels", [[], [0, 1, 2]])
def test_a_split_that_leaves_nothing_to_validate_on_is_refused(labels: list[int]) -> None:
    with pytest.raises(UserError, match="no class has two images: none is left to validate on"):
        split(np.array(labels, np.int64), 0.2)


def test_the_cache_is_in_the_jobs_own_scratch_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("HVDTRAIN_CACHE", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "system"))
    monkeypatch.setenv("SLURM_TMPDIR", str(tmp_path))
    assert cache_folder().parent == tmp_path
    # Inside a container that does not mount it.
    monkeypatch.setenv("SLURM_TMPDIR", str(tmp_path / "not mounted"))
    assert cache_folder().parent == tmp_path / "system"


def test_what_cannot_be_read_moves_no_other_image_between_training_and_validation() -> None:
    labels = np.repeat(np.arange(3), [40, 9, 2])
    whole = split(labels, 0.2)
    for missing in range(len(labels)):
        good = np.delete(np.arange(len(labels)), missing)
        for part, expected in zip(split(labels, 0.2, good=good), whole, strict=True):
            assert part.tolist() == [index for index in expected if index != missing]
    with pytest.raises(UserError, match="of the images to validate on none can be read"):
        split(labels, 0.2, good=whole[0])


def test_hidden_files_and_folders_are_no_images(tmp_path: Path) -> None:
    root = images.tree(tmp_path / "t", classes=2, each=2)
    seen = scan(root).files
    copy = root / "000.class 0" / ".picasaoriginals" / "0000.jpg"
    copy.parent.mkdir()
    copy.write_bytes((root / seen[0]).read_bytes())
    (root / "000.class 0" / "._0000.jpg").write_bytes(b"of a Mac")
    found = scan(root)
    assert found.files == seen
    assert found.strangers == ("000.class 0/._0000.jpg",)


def test_a_folder_that_holds_nothing_says_what_it_must_hold(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a folder; it must hold one folder for each class"):
        scan(tmp_path / "none")
    (tmp_path / "class").mkdir()
    with pytest.raises(UserError, match=r"has no images: .* ending in \.jpg, \.jpeg, \.png"):
        scan(tmp_path)


def test_a_folder_that_cannot_be_read_is_no_empty_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = images.tree(tmp_path / "t", classes=2, each=2)
    scandir = os.scandir

    for denied in (root / "001.class 1", root):

        def look(path: object, denied: Path = denied) -> object:
            if Path(str(path)) == denied:
                raise PermissionError(13, "Permission denied", str(path))
            return scandir(str(path))

        with monkeypatch.context() as patched:
            patched.setattr(os, "scandir", look)
            with pytest.raises(UserError) as caught:
                scan(root)
        assert str(caught.value) == f"{denied}: Permission denied"


def test_classes_without_images_are_named(alone: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = images.tree(tmp_path / "t", classes=2, each=2)
    (root / "aside").mkdir()
    (root / "empty").mkdir()
    pack(scan(root), 16, alone, gather)
    assert "2 of 4 classes have no image: aside, empty\n" in capsys.readouterr().out


def test_names_that_are_no_utf_8_can_be_told(alone: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As in an archive that was packed under another system; the terminal takes only UTF-8."""
    root = images.tree(tmp_path / "t", classes=2, each=2)
    for name in (b"n.caf\xe9.txt", b"n.caf\xe9.jpg"):
        Path(os.fsdecode(os.path.join(os.fsencode(root / "000.class 0"), name))).write_bytes(b"no picture")
    Path(os.fsdecode(os.path.join(os.fsencode(root), b"caf\xe9"))).mkdir()
    packed = pack(scan(root), 16, alone, gather)
    assert [os.fsencode(name) for name, _ in packed.bad] == [b"000.class 0/n.caf\xe9.jpg"]
    said = capsys.readouterr().out
    assert "1 of 3 classes have no image: caf\ufffd\n" in said
    assert "such as 000.class 0/n.caf\ufffd.txt\n" in said
    assert "left out:\n  000.class 0/n.caf\ufffd.jpg: " in said
    with pytest.raises(UserError, match=r"0 may be.*\n  000.class 0/n.caf\ufffd.jpg: "):
        pack(scan(root), 16, alone, gather, max_bad=0)


RANKS = """
import sys, zlib
import hvdtrain.torch as ht
from pathlib import Path
from hvdtrain.data.folders import scan
from hvdtrain.data.packed import pack
world = ht.init()
packed = pack(scan(Path(sys.argv[1])), 24, world, ht.gather_objects, max_bad=int(sys.argv[2]))
print(f"rank {world.rank} has {len(packed.good)} images, {zlib.crc32(packed.images.tobytes())}")
"""


@pytest.mark.ranks
def test_ranks_pack_together_and_fail_together(tmp_path: Path) -> None:
    root = images.tree(tmp_path / "t", each=20)
    images.nasty(root / "002.class 2")
    script = tmp_path / "packs.py"
    script.write_text(RANKS)
    seen = []
    for cache in ("one", "two"):
        ended = run_world(2 if cache == "two" else 1, script, root, 5, HVDTRAIN_CACHE=str(tmp_path / cache))
        assert ended.status == 0, ended.err
        seen += [line for line in ended.out.splitlines() if line.startswith("rank")]
    assert len(seen) == 3
    assert len({line.partition("has")[2] for line in seen}) == 1, seen
    ended = run_world(2, script, root, 1, HVDTRAIN_CACHE=str(tmp_path / "three"))
    assert ended.status == 2
    assert ended.err.count("3 of 89 images") == 1
    assert "Traceback" not in ended.err


def test_without_the_data_extra_it_says_what_to_install() -> None:
    program = "import sys; sys.modules['xxhash'] = None; import hvdtrain.data.packed"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "UserError: images are packed with Pillow and xxhash" in done.stderr
    assert "pip install 'hvdtrain[data]'" in done.stderr


def test_a_turned_tiff_is_turned_once(tmp_path: Path) -> None:
    pixels = np.zeros((40, 40, 3), np.uint8)
    pixels[:, :20, 0] = 255
    pixels[:, 20:, 2] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise
    for name in ("turned.tif", "turned.png"):
        Image.fromarray(pixels).save(tmp_path / name, exif=exif)
        turned = decode(tmp_path / name, 40)
        assert turned[10, 20, 0] > 200 and turned[30, 20, 2] > 200, name


def test_a_link_to_nowhere_and_a_broken_exif_end_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    images.picture(0, 4, 99).save(tmp_path / "a" / "plain.jpg", quality=95)
    (tmp_path / "a" / "gone.jpg").symlink_to("/nowhere/x.jpg")
    # An orientation whose entry points beyond the segment, in EXIF that is cut off.
    exif = b"Exif\x00\x00MM\x00*\x00\x00\x00\x08\x00\x02\x01\x12\x00\x05\x00\x00\x00\x01\xff\xff\xff\xf0\x01\x1a"
    images.picture(0, 4, 99).save(tmp_path / "a" / "exif.jpg", quality=95, exif=exif)
    tree = scan(tmp_path)
    assert tree.files == ("a/exif.jpg", "a/gone.jpg", "a/plain.jpg")
    with pytest.raises(Unreadable, match="No such file"):
        decode(tmp_path / tree.files[1], 32)
    assert np.abs(decode(tmp_path / tree.files[0], 32).astype(int) - decode(tmp_path / tree.files[2], 32)).mean() < 2


PACKS = """
import os, sys, time
from dataclasses import replace
from pathlib import Path
import hvdtrain.torch as ht
from hvdtrain.data import decode, packing
from hvdtrain.data.folders import scan, split
from hvdtrain.data.packed import pack
world = ht.init()
# Ranks of one machine, as if each were a node of its own.
place = replace(world, node=f"{sys.argv[3]}{world.rank}", local_rank=0, local_size=1)
root = Path(sys.argv[1])
if sys.argv[2] == "unreadable" and world.rank == 1:
    sound = decode.decode
    def decode_here(path, size, out=None):
        if path.name == "1.jpg":
            raise decode.Unopened("Stale file handle")
        return sound(path, size, out)
    packing.decode = decode_here
tree = scan(root)
if sys.argv[2] == "other" and world.rank == 1:
    tree = replace(tree, files=tree.files[:-1], labels=tree.labels[:-1])
if sys.argv[2] == "slow":
    sound_wait = packing.decode_files
    from hvdtrain.data import packed
    packed.decode_files = lambda *given: (time.sleep(2), sound_wait(*given))[1]
found = pack(tree, 16, place, ht.gather_objects, max_bad=int(sys.argv[4]))
print("good", found.good.tolist(), [name for name, _ in found.bad], found.images.shape)
told = ht.gather_objects((found.good.tolist(), [each.tolist() for each in split(found.labels[found.good], 0.3)]))
assert all(each == told[0] for each in told)
"""


def _pack_on_two(folder: Path, *words: object, run: int = 0) -> Ended:
    script = folder / f"pack{run}.py"
    script.write_text(PACKS)
    return run_world(2, script, folder / "tree", *words, HVDTRAIN_CACHE=str(folder / "cache"))


def _small_tree(folder: Path) -> None:
    for name in ("a", "b"):
        (folder / "tree" / name).mkdir(parents=True)
        for number in range(4):
            images.picture(number, 4, 20).save(folder / "tree" / name / f"{number}.jpg")


@pytest.mark.ranks
def test_what_one_node_cannot_read_no_node_trains_on(tmp_path: Path) -> None:
    _small_tree(tmp_path)
    ended = _pack_on_two(tmp_path, "unreadable", "node", 4)
    assert ended.status == 0, ended.err
    assert "good [0, 2, 3, 4, 6, 7] ['a/1.jpg', 'b/1.jpg'] (8, 16, 16, 3)" in ended.out
    assert "2 of 8 images cannot be read and are left out:\n  a/1.jpg: Stale file handle" in ended.out
    # It can be opened now, so the verdict is not taken from the cache.
    again = _pack_on_two(tmp_path, "-", "node", 4)
    assert again.status == 0, again.err
    assert "good [0, 1, 2, 3, 4, 5, 6, 7] []" in again.out
    too_many = _pack_on_two(tmp_path, "unreadable", "fresh", 1)
    assert too_many.status == 2, too_many.err
    assert "2 of 8 images in" in too_many.err and "cannot be read; 1 may be (--max-bad)" in too_many.err


@pytest.mark.ranks
def test_nodes_with_other_files_are_refused(tmp_path: Path) -> None:
    _small_tree(tmp_path)
    ended = _pack_on_two(tmp_path, "other", "node", 4)
    assert ended.status == 2, ended.err
    assert (
        "is not the same on all nodes: 8 images of 2 classes on node0 and 7 images of 2 classes on node1" in ended.err
    )
    assert "Traceback" not in ended.err


@pytest.mark.ranks
def test_two_runs_on_the_same_nodes_wait_for_each_other_in_turn(tmp_path: Path) -> None:
    _small_tree(tmp_path)
    with ThreadPoolExecutor(2) as pool:
        # The same cache on both nodes, in both runs.
        ended = list(pool.map(lambda run: _pack_on_two(tmp_path, "slow", "node", 4, run=run), range(2)))
    assert [each.status for each in ended] == [0, 0], [each.err for each in ended]
    assert any("another run packs images on node0, node1; waiting" in each.err for each in ended)


BACKBONES = """
import importlib, keras, numpy as np
from hvdtrain.data.image_job import as_wanted
pixels = np.random.default_rng(0).integers(0, 256, (2, 4, 4, 3)).astype("float32")
homes = {"MobileNetV3Small": "mobilenet_v3", "MobileNetV3Large": "mobilenet_v3", "Xception": "xception", "VGG16": "vgg16",
         "VGG19": "vgg19", "InceptionV3": "inception_v3", "InceptionResNetV2": "inception_resnet_v2", "MobileNet": "mobilenet",
         "MobileNetV2": "mobilenet_v2"}
prefixes = {"EfficientNetV2": "efficientnet_v2", "EfficientNetB": "efficientnet", "ConvNeXt": "convnext", "DenseNet": "densenet",
            "NASNet": "nasnet"}
known = [name for name in dir(keras.applications) if name[0].isupper()]
for name in known:
    home = homes.get(name) or next((home for prefix, home in prefixes.items() if name.startswith(prefix)), None)
    home = home or ("resnet_v2" if name.endswith("V2") else "resnet")
    expected = importlib.import_module(f"keras.applications.{home}").preprocess_input(pixels.copy())
    given = keras.Input((4, 4, 3))
    found = keras.Model(given, as_wanted(name, given))(pixels)
    assert np.abs(keras.ops.convert_to_numpy(found) - expected).max() < 1e-4, name
print(len(known), "families")
"""


@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_each_backbone_gets_the_pixels_that_it_was_trained_on(backend: str, tmp_path: Path) -> None:
    script = tmp_path / "backbones.py"
    script.write_text(BACKBONES)
    ended = run_world(1, script, KERAS_BACKEND=backend)
    assert ended.status == 0, ended.err
    assert int(ended.out.split()[0]) > 30
