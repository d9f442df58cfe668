import numpy as np
import pytest

from equipoise.suites.celeba.data import load, load_pack


def test_pack_comes_back_as_it_was_written(tmp_path, write_pack):
    images, attributes, part = write_pack(tmp_path / "celeba.npz")
    for path in (tmp_path / "celeba.npz", tmp_path):  # the file, or the folder it is in
        faces = load_pack(path, cache=tmp_path / "cache")
        np.testing.assert_array_equal(faces.images, images)
        np.testing.assert_array_equal(faces.attributes, attributes)
        np.testing.assert_array_equal(faces.part, part)


def test_official_folder(tmp_path, write_official):
    images, attributes, part = write_official(tmp_path / "celeba")
    faces = load(tmp_path / "celeba", cache=tmp_path / "cache")
    np.testing.assert_array_equal(faces.attributes, attributes)
    np.testing.assert_array_equal(faces.part, part)
    assert faces.images.shape == images.shape
    inner = np.s_[:, 3::8, 3::8]  # the middle of each block, which JPEG and resizing leave alone
    assert np.abs(faces.images[inner].astype(int) - images[inner]).max() < 25


def test_changed_labels_are_packed_anew(tmp_path, write_official):
    write_official(tmp_path / "celeba")
    before = load(tmp_path / "celeba", cache=tmp_path / "cache").part.copy()
    parts = tmp_path / "celeba/Eval/list_eval_partition.txt"
    parts.write_text(parts.read_text().replace("000001.jpg 0", "000001.jpg 2"))
    after = load(tmp_path / "celeba", cache=tmp_path / "cache").part
    assert before[0] == 0 and after[0] == 2


def test_no_data_says_where_to_get_it():
    with pytest.raises(FileNotFoundError, match=r"needs `data`.*Found none\..*mmlab"):
        load(None)


@pytest.mark.parametrize("missing", ["Anno/list_attr_celeba.txt", "Eval/list_eval_partition.txt"])
def test_a_missing_file_is_named(tmp_path, write_official, missing):
    write_official(tmp_path / "celeba", 4)
    (tmp_path / "celeba" / missing).unlink()
    with pytest.raises(FileNotFoundError, match=rf"{missing}.*CelebA is at"):
        load(tmp_path / "celeba", cache=tmp_path / "cache")


def test_a_missing_image_is_named(tmp_path, write_official):
    write_official(tmp_path / "celeba", 4)
    (tmp_path / "celeba/Img/img_align_celeba/000003.jpg").unlink()
    with pytest.raises(FileNotFoundError, match=r"000003\.jpg.*CelebA is at"):
        load(tmp_path / "celeba", cache=tmp_path / "cache")


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("Anno/list_attr_celeba.txt", "4\n", "5\n", r"the 5 rows its first line promises\. Found 4"),
        ("Anno/list_attr_celeba.txt", "Bald", "Bold", "should name the 40 attributes"),
        ("Anno/list_attr_celeba.txt", " 1 ", " 0 ", r"1 or -1\. Found 000001\.jpg"),
        ("Anno/list_attr_celeba.txt", "000002.jpg ", "000002.jpg 1 ", r"40 times 1 or -1\. Found 000002\.jpg"),
        ("Eval/list_eval_partition.txt", "000002.jpg 1", "000002.jpg 7", r"Found '7' for 000002\.jpg"),
        ("Eval/list_eval_partition.txt", "000002.jpg", "x.jpg", r"Found None for 000002\.jpg"),
    ],
)
def test_wrong_contents_are_named(tmp_path, write_official, file, old, new, message):
    write_official(tmp_path / "celeba", 4)
    path = tmp_path / "celeba" / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(ValueError, match=message):
        load(tmp_path / "celeba", cache=tmp_path / "cache")


def test_a_strange_archive_is_refused(tmp_path):
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    with pytest.raises(ValueError, match=r"other\.npz should hold img, off, attr, names and split"):
        load_pack(tmp_path / "other.npz", cache=tmp_path / "cache")
    with pytest.raises(FileNotFoundError, match=r"needs `data`, an \.npz"):
        load_pack(tmp_path, cache=tmp_path / "cache")
