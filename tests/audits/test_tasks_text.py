"""Tags of tokens, free text and ordinal classes: read, audited, reviewed and corrected like other labels."""

import numpy as np
import pytest

import fnlkit
from fnlkit import datasets
from fnlkit.audits.tasks import confidence
from fnlkit.audits.tasks.tokens import sentence_quality
from fnlkit.datasets import columns, tokens
from fnlkit.errors import InputError
from fnlkit.kernels.counting import thresholds_of
from tests.audits.test_tasks import session_of, write
from tests.commands import succeed

PEOPLE, PLACES = "Anna Boris Clara David Emma Frank".split(), "Berlin Paris Rome Oslo Madrid Vienna".split()


def conll(path, site, sentences=40):
    """Write sentences of a person and a place; at site 1, a third of the tags are swapped."""
    rng = np.random.default_rng(site)
    lines = []
    for _ in range(sentences):
        for word, tag in ((rng.choice(PEOPLE), "PER"), ("visits", "O"), (rng.choice(PLACES), "LOC"), (".", "O")):
            swapped = {"PER": "LOC", "LOC": "PER", "O": "O"}[tag] if site == 1 and rng.random() < 0.33 else tag
            lines.append(f"{word} {swapped}")
        lines.append("")
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def tagged(tmp_path_factory):
    """Federation of four CoNLL files, one per site."""
    folder = tmp_path_factory.mktemp("tagged")
    for site in range(4):
        conll(folder / f"h{site}.conll", site)
    return fnlkit.partition(str(folder), "sites", say=None)


def test_conll_files_and_tables_are_the_same(tmp_path):
    (tmp_path / "a.conll").write_text("-DOCSTART- O\n\nAnna NNP PER\nsleeps VB O\n\n\n# a comment\nIn\tO\nRome\tLOC\n")
    one = datasets.load(tmp_path / "a.conll")
    path = write(
        tmp_path / "a.csv",
        {"sentence": [1, 1, 2, 2], "token": ["Anna", "sleeps", "In", "Rome"], "label": ["PER", "O", "O", "LOC"]},
    )
    table = datasets.load(f'manifest(file="{path}", task=tokens)')
    np.testing.assert_array_equal(one.x_train, table.x_train)
    assert one.y_train.tolist() == table.y_train.tolist() and one.class_names == ["LOC", "O", "PER"]
    assert one.ids.tolist() == ["1 1", "1 2", "2 1", "2 2"] and one.fields["sentence"].tolist() == [0, 0, 2, 2]
    assert one.shown[3] == [["token", "Rome"], ["sentence", "In [Rome]"]]


@pytest.mark.parametrize("text", ["", "\n\n", "Anna\n", "Anna O\nBoris O\n"])
def test_conll_files_without_tags_are_refused(tmp_path, text):
    (tmp_path / "a.conll").write_text(text)
    with pytest.raises(InputError, match="a.conll"):
        datasets.load(tmp_path / "a.conll")


def test_tokens_need_their_columns_and_whole_sentences(tmp_path, tagged):
    path = write(tmp_path / "t.csv", {"x": [1, 2, 3, 4], "label": ["a", "b", "a", "b"]})
    with pytest.raises(InputError, match="sentence"):
        datasets.load(f'manifest(file="{path}", task=tokens)')
    with pytest.raises(InputError, match="sentences"):
        fnlkit.partition(tagged.dataset, "iid", clients=2, say=None)
    with pytest.raises(InputError, match="tokens"):
        fnlkit.train(tagged, say=None)


def test_words_beside_a_token_stay_in_the_sentence():
    x = tokens.features(["a", "b", "c"], ["1", "1", "2"])
    first, second = slice(tokens.WORD, tokens.WORD + tokens.BESIDE), slice(tokens.WORD + tokens.BESIDE, -4)
    assert not x[0, first].any() and x[1, first].any() and not x[2, first].any()
    assert x[0, second].any() and not x[1, second].any() and not x[2, second].any()


def test_token_scores_equal_cleanlab_on_pooled_data():
    cleanlab = pytest.importorskip("cleanlab", reason="the comparison library is not installed")
    from cleanlab.token_classification.filter import find_label_issues
    from cleanlab.token_classification.rank import get_label_quality_scores

    rng = np.random.default_rng(8)
    y = rng.integers(3, size=240)
    logits = rng.normal(size=(240, 3)) + 2 * np.eye(3)[np.where(rng.random(240) < 0.2, (y + 1) % 3, y)]
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    lengths = [7, 3, 30, 60, 20, 120]
    ends = np.cumsum(lengths)[:-1]
    session, exchange = session_of(np.eye(3)[y], np.stack([p, p[:, ::-1]], 1), [40, 80, 120])
    confidence.estimate(session, np.zeros((3, 1), int), "tokens", 0)
    labels, probs = [list(part) for part in np.split(y, ends)], np.split(p, ends)
    sentence, words = get_label_quality_scores(labels, probs)
    quality = session.kept("quality")
    np.testing.assert_allclose(quality, np.concatenate([each.to_numpy() for each in words]), rtol=0, atol=1e-9)
    of = np.repeat(np.arange(6), lengths)
    np.testing.assert_allclose(sentence_quality(quality, of), sentence[of], rtol=0, atol=1e-9)
    told = exchange.replies[0]
    limits = thresholds_of(told["label_sums"].sum(0).numpy(), told["label_numbers"].sum(0).numpy())
    np.testing.assert_allclose(limits[0], cleanlab.count.get_confident_thresholds(y, p), rtol=0, atol=1e-9)
    place = {(i, j): k for k, (i, j) in enumerate((i, j) for i, n in enumerate(lengths) for j in range(n))}
    issues = find_label_issues(labels, probs, filter_by="confident_learning")
    assert sorted(np.flatnonzero(session.kept("flagged"))) == sorted(place[pair] for pair in issues)
    assert len(issues) > 5


def test_wrong_tags_are_found_and_corrected(tmp_path, tagged):
    fnlkit.save(tagged, tmp_path / "f.npz")
    for call in (
        "audit f.npz -o judged.npz --html audit.html",
        "review export judged.npz --client h1 --budget 5 -o review",
        "correct judged.npz --csv cleaned.csv -o corrected.npz",
    ):
        succeed(f"fnlkit {call}", tmp_path)
    judged = fnlkit.suspects(str(tmp_path / "judged.npz"), every=True).to_pandas()
    assert (judged["site"][:10] == "h1").all() and (judged["sentence_quality"] <= judged["quality"] + 1e-12).all()
    cleaned = fnlkit.cleaned(str(tmp_path / "corrected.npz")).to_pandas()
    changed = cleaned[cleaned["action"] == "changed"]
    assert len(changed) > 10 and (changed["site"] == "h1").mean() > 0.9
    page = (tmp_path / "review" / "review.html").read_text()
    assert "visits" in page and "<select" in page


def test_one_sentence_per_site(tmp_path):
    for site in "ab":
        (tmp_path / f"{site}.conll").write_text("Anna PER\nsleeps O\n")
    found = fnlkit.audit(fnlkit.partition(str(tmp_path), "sites", say=None), say=None)
    assert all(row["level"] is None for row in found.facts["sites"])


# ---- free text and ordinal classes
def test_free_text_is_hashed_and_shown(tmp_path):
    rng = np.random.default_rng(9)
    kind = rng.integers(2, size=120)
    notes = [f"{('cough and fever', 'broken left arm')[k]} since day {i}" for i, k in enumerate(kind)]
    path = write(tmp_path / "t.csv", {"note": notes, "age": np.arange(120) % 50, "label": np.array(["flu", "bone"])[kind]})
    with pytest.raises(InputError, match='text=\\["note"\\]'):
        datasets.load(path)
    data = datasets.load(f'manifest(file="{path}", text=[note])')
    assert data.x_train.shape == (120, columns.TEXT_FEATURES + 1) == (120, len(data.columns))
    assert data.shown[0] == [["note", notes[0]], ["age", "0"]]
    assert columns.decode_row(data.table, data.x_train[3]) == [("age", "3")]
    federation = fnlkit.partition(f'manifest(file="{path}", text=[note])', clients=3, say=None)
    run = fnlkit.train(federation, rounds=3, engine="sequential", say=None)
    fnlkit.save(run, tmp_path / "run.pt")
    assert run.history[-1]["agreement"] > 0.9


def test_ordinal_suspects_have_a_distance(tmp_path):
    x = np.arange(200) % 40
    grade = np.array(["low", "mid", "high"])[np.minimum(x // 14, 2)]
    grade[:4] = "high"
    path = write(tmp_path / "t.csv", {"x": x, "site": np.arange(200) % 2, "label": grade})
    spec = f'manifest(file="{path}", task=ordinal, levels=[low, mid, high])'
    federation = fnlkit.partition(spec, "sites", say=None)
    judged = fnlkit.estimate_noise(federation, "knn", say=None)
    sheet = fnlkit.suspects(judged, every=True).to_pandas()
    places = {"low": 0, "mid": 1, "high": 2}
    wanted = (sheet["given"].map(places) - sheet["suggested"].map(places)).abs()
    assert (sheet["distance"] == wanted).all() and wanted.max() > 0
