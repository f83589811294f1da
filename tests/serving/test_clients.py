"""What real clients send, and the exact answers that they get, against those of the same model
without a server."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from bothways.runtime.entities import Aggregation, group_tokens
from bothways.serving.options import KEY
from serving_examples import Running, make_folders, offline, running

openai = pytest.importorskip("openai")
huggingface_hub = pytest.importorskip("huggingface_hub")
InferenceClient = huggingface_hub.InferenceClient
HfHubHTTPError = pytest.importorskip("huggingface_hub.errors").HfHubHTTPError

TEXT, OTHER = "w1 w2 w3", "w40 w5"
MASKED = "w1 [MASK] w3"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(make_folders(tmp_path_factory.mktemp("models"))) as found:
        yield found


def client(server: Running, name: str) -> Any:
    # With a model that is a URL, as for an endpoint of one's own.
    return InferenceClient(model=f"{server.url}/models/{name}", provider="hf-inference", token="x")


def sorted_labels(values: np.ndarray, names: tuple[str, ...]) -> list[tuple[str, float]]:
    found = zip(names, values.tolist(), strict=True)
    return sorted(found, key=lambda pair: -pair[1])


# ------------------------------------------------------------------------------------ Hugging Face


@pytest.mark.parametrize("name", ["classes", "tokens", "several", "score"])
def test_text_classification(server: Running, name: str) -> None:
    found = client(server, name).text_classification(TEXT)
    expected = offline(server.folders[name]).predict([TEXT])
    pairs = [(one.label, one.score) for one in found]
    assert pairs == sorted_labels(expected.values[0], expected.names)
    assert len(client(server, name).text_classification(TEXT, top_k=1)) == 1


def test_text_classification_of_several_and_of_pairs(server: Running) -> None:
    inputs = [TEXT, OTHER]
    found = server.post("/models/classes", {"inputs": inputs}).json()
    assert [len(row) for row in found] == [3, 3]
    single = server.post("/models/classes", {"inputs": TEXT}).json()
    assert single == found[:1]
    pair = {"text": TEXT, "text_pair": OTHER}
    found = server.post("/models/reranker", {"inputs": pair}).json()
    value = offline(server.folders["reranker"]).predict([TEXT], [OTHER]).values[0, 0]
    assert found == [[{"label": "score", "score": value}]]


def test_token_classification(server: Running) -> None:
    model, ask = offline(server.folders["tags"]), client(server, "tags").token_classification
    found = ask(TEXT)
    assert [(e.entity_group, e.word, e.start, e.end, e.score) for e in found] == [
        (e.type, e.text, e.start, e.end, e.probability) for e in model.tag(TEXT).entities
    ]
    assert found
    assert server.post("/models/tags", {"inputs": [TEXT, " "]}).json()[1] == []
    for how in get_args(Aggregation):
        (groups,) = group_tokens(model.loaded, [TEXT], how)
        for ignored in ([], None, ["O", "X", "B-X"]):
            expected = [
                (one.type, one.start, one.end, one.probability)
                for one in groups
                if one.type not in (["O"] if ignored is None else ignored)
            ]
            entities = ask(TEXT, aggregation_strategy=how, ignore_labels=ignored)
            name = "entity" if how == "none" else "entity_group"
            assert [(one[name], one.start, one.end, one.score) for one in entities] == expected
    refused = server.post("/models/tags", {"inputs": TEXT, "parameters": {"ignore_labels": []}})
    assert refused.status_code == 422
    assert "needs an aggregation_strategy" in refused.json()["error"]


def test_question_answering(server: Running) -> None:
    context = "w7 w8 w9"
    (best,) = offline(server.folders["answers"]).answer(TEXT, context, top=1)
    found = client(server, "answers").question_answering(question=TEXT, context=context)
    expected = (best.text, best.start, best.end, best.probability)
    assert (found.answer, found.start, found.end, found.score) == expected
    several = client(server, "answers").question_answering(question=TEXT, context=context, top_k=2)
    assert isinstance(several, list)
    assert len(several) == 2
    short = client(server, "answers").question_answering(
        *(TEXT, context), top_k=20, max_answer_len=1, handle_impossible_answer=False
    )
    assert isinstance(short, list)
    assert {answer.answer for answer in short} == {"w7", "w8", "w9"}
    long = client(server, "answers").question_answering(TEXT, context, max_answer_len=2**60)
    assert long == found


def test_fill_mask(server: Running) -> None:
    model = offline(server.folders["pretrained"])
    (expected,) = model.fill_mask(MASKED, top=3)
    found = client(server, "pretrained").fill_mask(MASKED, top_k=3)
    assert [(f.token_str, f.score, f.sequence) for f in found] == [
        (f.piece, f.probability, f.text) for f in expected
    ]
    assert [model.tokenizer.id(f.token_str) for f in found] == [f.token for f in found]
    among = client(server, "pretrained").fill_mask(MASKED, targets=["w9", "w4"])
    assert {f.token_str for f in among} == {"w9", "w4"}
    two = server.post("/models/pretrained", {"inputs": "[MASK] w1 [MASK]"}).json()
    assert [len(row) for row in two] == [5, 5]


def test_vectors_and_similarity(server: Running) -> None:
    model = offline(server.folders["vectors"])
    of_client = client(server, "vectors")
    np.testing.assert_array_equal(of_client.feature_extraction(TEXT), model.embed([TEXT]))
    np.testing.assert_array_equal(
        of_client.feature_extraction([TEXT, OTHER], normalize=True),
        model.embed([TEXT, OTHER], normalize=True),
    )
    found = of_client.sentence_similarity(TEXT, [OTHER, TEXT])
    assert found == pytest.approx([float(cosine(model, OTHER)), 1.0])
    # A model for something else gives its vectors where they are asked by name.
    url = f"{server.url}/models/classes/pipeline/feature-extraction"
    of_classes = InferenceClient(model=url, provider="hf-inference").feature_extraction(TEXT)
    expected = offline(server.folders["classes"]).embed([TEXT])
    np.testing.assert_array_equal(of_classes, expected)


def cosine(model: Any, other: str) -> float:
    a, b = model.embed([TEXT, other], normalize=True)
    return float(a @ b)


def test_the_base_url_form_of_the_client(server: Running) -> None:
    """Every task, with the same answers."""

    def both(name: str, task: str, *given: Any, **how: Any) -> Any:
        other = InferenceClient(base_url=f"{server.url}/models/{name}")
        found = getattr(other, task)(*given, **how)
        expected = getattr(client(server, name), task)(*given, **how)
        np.testing.assert_equal(found, expected)
        return found

    assert {one.label for one in both("classes", "text_classification", TEXT)} == {"a", "b", "c"}
    assert both("tags", "token_classification", TEXT, aggregation_strategy="simple")
    assert both("answers", "question_answering", question=TEXT, context=OTHER).start >= 0
    assert len(both("pretrained", "fill_mask", MASKED, targets=["w9", "w4"])) == 2
    assert both("vectors", "feature_extraction", TEXT, normalize=True, truncate=True).shape == (
        *(1, 16),
    )
    assert len(both("vectors", "sentence_similarity", TEXT, [OTHER, TEXT])) == 2


def test_the_asynchronous_client(server: Running) -> None:
    async def ask() -> Any:
        url = f"{server.url}/models/classes"
        async with huggingface_hub.AsyncInferenceClient(url, provider="hf-inference") as found:
            return await found.text_classification(TEXT)

    assert asyncio.run(ask()) == client(server, "classes").text_classification(TEXT)


NAMED = {
    "ner": ("tags", "token-classification"),
    "NER": ("tags", "token-classification"),
    "pos": ("tags", "token-classification"),
    "sentiment-analysis": ("classes", "text-classification"),
    "text_classification": ("classes", "text-classification"),
    "multilabel": ("several", "text-classification"),
    "qa": ("answers", "question-answering"),
}


@pytest.mark.parametrize("name", NAMED)
def test_tasks_by_the_names_that_people_use(server: Running, name: str) -> None:
    model, task = NAMED[name]
    inputs = ASKED if name == "qa" else TEXT
    expected = server.post(f"/models/{model}/pipeline/{task}", {"inputs": inputs})
    found = server.post(f"/models/{model}/pipeline/{name}", {"inputs": inputs})
    assert (found.status_code, found.content) == (200, expected.content)


@pytest.mark.parametrize(
    "path",
    [
        "/hf-inference/models/tags",
        "/hf-inference/models/tags/pipeline/token-classification",
        "/hf-inference/models/owner/tags/pipeline/token-classification/",
        "/pipeline/token-classification/tags",
        "/pipeline/ner/owner/tags",
        "/models/owner/tags",
    ],
)
def test_addresses_of_hugging_faces_servers(server: Running, path: str) -> None:
    """Its router's, with the owner of a model or without, and those of older clients."""
    expected = server.post("/models/tags", {"inputs": TEXT})
    found = server.post(path, {"inputs": TEXT})
    assert (found.status_code, found.content) == (200, expected.content)


def test_a_model_that_does_not_exist_by_these_addresses(server: Running) -> None:
    for path in ("/pipeline/ner/nothing", "/hf-inference/models/owner/nothing"):
        assert server.post(path, {"inputs": TEXT}).status_code == 404
    refused = server.post("/models/tags/pipeline/qa", {"inputs": ASKED})
    assert refused.status_code == 422
    assert "does not do question-answering" in refused.json()["error"]


ASKED = {"question": TEXT, "context": OTHER}


def test_health_and_info(server: Running) -> None:
    of_client = client(server, "tags")
    assert of_client.health_check()
    info = of_client.get_endpoint_info()
    assert (info["model_id"], info["model_pipeline_tag"]) == ("tags", "token-classification")
    assert (info["max_client_batch_size"], info["max_batch_tokens"]) == (64, 512)


def test_an_error_reaches_the_client(server: Running) -> None:
    with pytest.raises(HfHubHTTPError, match="422"):
        client(server, "classes").question_answering(question="w1", context="w2")
    with pytest.raises(HfHubHTTPError, match="422"):
        client(server, "classes").fill_mask("w1", targets=["w2"])
    with pytest.raises(HfHubHTTPError, match="404"):
        client(server, "nothing").text_classification(TEXT)


# ------------------------------------------------------------------------------------------ OpenAI


def test_openai(server: Running) -> None:
    of_openai = openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0)
    expected = offline(server.folders["vectors"]).embed([TEXT, OTHER], normalize=True)
    found = of_openai.embeddings.create(model="vectors", input=[TEXT, OTHER])
    np.testing.assert_array_equal(np.array([d.embedding for d in found.data], "f4"), expected)
    assert [d.index for d in found.data] == [0, 1]
    assert found.usage.prompt_tokens == found.usage.total_tokens == 5 + 4
    floats = of_openai.embeddings.create(model="vectors", input=TEXT, encoding_format="float")
    np.testing.assert_array_equal(np.array(floats.data[0].embedding, "f4"), expected[0])
    assert [model.id for model in of_openai.models.list()] == list(server.folders)
    assert of_openai.models.retrieve("vectors").id == "vectors"
    assert of_openai.models.retrieve("owner/vectors").id == "vectors"
    below = openai.OpenAI(base_url=f"{server.url}/models/vectors/v1", api_key="x", max_retries=0)
    assert [model.id for model in below.models.list()] == ["vectors"], "which its routes take"
    with pytest.raises(openai.NotFoundError, match="no such model"):
        of_openai.models.retrieve("w1")
    with pytest.raises(openai.UnprocessableEntityError, match="input is empty"):
        of_openai.embeddings.create(model="vectors", input=[])
    for ids in ([1, 2], [[1, 2], [3]]):
        with pytest.raises(openai.UnprocessableEntityError, match="Expected `str`"):
            of_openai.embeddings.create(model="vectors", input=ids)
    with pytest.raises(openai.NotFoundError, match="no such model"):
        of_openai.embeddings.create(model="text-embedding-3-small", input=TEXT)


def test_base64_is_of_little_endian_float32(server: Running) -> None:
    asked = {"model": "vectors", "input": TEXT, "encoding_format": "base64"}
    found = server.post("/v1/embeddings", asked).json()
    raw = base64.b64decode(found["data"][0]["embedding"])
    expected = offline(server.folders["vectors"]).embed([TEXT], normalize=True)
    assert raw == expected.astype("<f4").tobytes()


def test_clients_of_many_requests_at_a_time(server: Running) -> None:
    texts = [f"w{n} w{n + 1}" for n in range(20)]
    vectors = offline(server.folders["vectors"]).embed(texts, normalize=True)
    labels = offline(server.folders["classes"]).predict(texts)

    async def ask() -> tuple[list[Any], list[Any]]:
        url = f"{server.url}/models/classes"
        async with (
            openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="x") as of_openai,
            huggingface_hub.AsyncInferenceClient(model=url, provider="hf-inference") as of_hub,
        ):
            create = of_openai.embeddings.create
            one = asyncio.gather(*(create(model="vectors", input=text) for text in texts))
            two = asyncio.gather(*(of_hub.text_classification(text) for text in texts))
            return await one, await two

    found, of_texts = asyncio.run(ask())
    np.testing.assert_array_equal(np.array([f.data[0].embedding for f in found], "f4"), vectors)
    for row, pairs in zip(labels.values, of_texts, strict=True):
        assert [(p.label, p.score) for p in pairs] == sorted_labels(row, labels.names)


def test_clients_send_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, "s3cret")
    with running(make_folders(tmp_path, "vectors")) as own:
        url, v1 = f"{own.url}/models/vectors", f"{own.url}/v1"
        ours = InferenceClient(model=url, provider="hf-inference", api_key="s3cret")
        assert ours.feature_extraction(TEXT).shape == (1, 16)
        assert ours.get_endpoint_info()["model_id"] == "vectors"
        good = openai.OpenAI(base_url=v1, api_key="s3cret", max_retries=0)
        assert good.embeddings.create(model="vectors", input=TEXT).data
        wrong = InferenceClient(model=url, provider="hf-inference", api_key="another")
        assert wrong.health_check()
        assert own.get("/models/vectors/info").status_code == 401
        with pytest.raises(HfHubHTTPError, match="401"):
            wrong.feature_extraction(TEXT)
        with pytest.raises(openai.AuthenticationError, match="send the server's key"):
            openai.OpenAI(base_url=v1, api_key="another").models.list()


# ------------------------------------------------------------------------------------ exact shapes


SHAPES: dict[str, tuple[str, Any, Any]] = {
    "classification": (
        *("/models/classes", {"inputs": TEXT}),
        [[{"label": str, "score": float}] * 3],
    ),
    "entities": (
        *("/models/tags", {"inputs": TEXT, "parameters": {"aggregation_strategy": "simple"}}),
        [{"entity_group": str, "score": float, "word": str, "start": int, "end": int}],
    ),
    "words": (
        *("/models/tags", {"inputs": TEXT, "parameters": {"aggregation_strategy": "none"}}),
        *(
            [
                {
                    **{"entity": str, "score": float, "index": int},
                    "word": str,
                    "start": int,
                    "end": int,
                }
            ],
        ),
    ),
    "answer": (
        *("/models/answers", {"inputs": {"question": TEXT, "context": OTHER}}),
        {"answer": str, "score": float, "start": int, "end": int},
    ),
    "fillings": (
        *("/models/pretrained", {"inputs": MASKED, "parameters": {"top_k": 2}}),
        [{"score": float, "token": int, "token_str": str, "sequence": str}] * 2,
    ),
    "fillings of two": (
        *("/models/pretrained", {"inputs": "[MASK] [MASK]", "parameters": {"top_k": 1}}),
        [[{"score": float, "token": int, "token_str": str, "sequence": str}]] * 2,
    ),
    "similarities": (
        *("/models/vectors", {"inputs": {"source_sentence": TEXT, "sentences": [OTHER] * 2}}),
        [float] * 2,
    ),
    "vectors": (
        "/models/vectors",
        {"inputs": [TEXT, OTHER], "normalize": True},
        [[float] * 16] * 2,
    ),
    "TEI vectors": ("/models/vectors/embed", {"inputs": TEXT, "truncate": True}, [[float] * 16]),
    "TEI token vectors": ("/models/vectors/embed_all", {"inputs": "w1 w2"}, [[[float] * 16] * 2]),
    "TEI labels": (
        *("/models/classes/predict", {"inputs": TEXT, "raw_scores": True}),
        [{"label": str, "score": float}] * 3,
    ),
    "TEI labels of several": (
        *("/models/classes/predict", {"inputs": [[TEXT], [OTHER]]}),
        [[{"label": str, "score": float}] * 3] * 2,
    ),
    "TEI ranks": (
        *("/models/reranker/rerank", {"query": TEXT, "texts": [OTHER, TEXT]}),
        [{"index": int, "score": float}] * 2,
    ),
    "TEI ranks with texts": (
        *("/models/reranker/rerank", {"query": TEXT, "texts": [OTHER], "return_text": True}),
        [{"index": int, "score": float, "text": str}],
    ),
    "OpenAI": (
        *("/v1/embeddings", {"model": "vectors", "input": TEXT}),
        {
            "object": str,
            "data": [{"object": str, "index": int, "embedding": [float] * 16}],
            "model": str,
            "usage": {"prompt_tokens": int, "total_tokens": int},
        },
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_exact_shapes(server: Running, name: str) -> None:
    path, body, shape = SHAPES[name]
    answer = server.post(path, body)
    assert answer.status_code == 200, answer.text
    check_shape(answer.json(), shape)


def check_shape(found: Any, shape: Any) -> None:
    """Names, types and lengths; of a list with one example, one or more like that."""
    if isinstance(shape, type):
        assert type(found) is shape
    elif isinstance(shape, dict):
        assert found.keys() == shape.keys()
        for name in shape:
            check_shape(found[name], shape[name])
    else:
        assert isinstance(found, list)
        assert len(found) == len(shape) or len(shape) == 1 <= len(found)
        for n, one in enumerate(found):
            check_shape(one, shape[min(n, len(shape) - 1)])


# ----------------------------------------------------------------------- text-embeddings-inference


def ask(server: Running, name: str, route: str, **body: Any) -> Any:
    answer = server.post(f"/models/{name}{route}", body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_embed(server: Running) -> None:
    model = offline(server.folders["vectors"])
    found = ask(server, "vectors", "/embed", inputs=TEXT)
    np.testing.assert_array_equal(np.array(found, "f4"), model.embed([TEXT], normalize=True))
    plain = ask(server, "vectors", "/embed", inputs=[TEXT, OTHER], normalize=False)
    np.testing.assert_array_equal(np.array(plain, "f4"), model.embed([TEXT, OTHER]))
    tokens = ask(server, "vectors", "/embed_all", inputs=TEXT, normalize=False)
    (expected,) = model.embed_tokens([TEXT])
    np.testing.assert_array_equal(np.array(tokens[0], "f4"), expected.vectors)
    long = " ".join(["w5"] * 90)
    cut = ask(server, "vectors", "/embed", inputs=long, normalize=False, truncate=True)
    np.testing.assert_array_equal(np.array(cut, "f4"), model.embed([long], long="cut"))
    whole = ask(server, "vectors", "/embed", inputs=long, normalize=False)
    np.testing.assert_array_equal(np.array(whole, "f4"), model.embed([long]))


def test_embed_cuts_nothing_against_the_request(server: Running) -> None:
    """A folder of sentence-transformers says where its texts are cut."""
    about = server.server.models["vectors"].model.loaded.about
    long = {"inputs": " ".join(["w5"] * 30), "truncate": False}
    assert server.post("/models/vectors/embed", long).status_code == 200
    about["cut_at"] = 20
    try:
        refused = server.post("/models/vectors/embed", long)
        assert (refused.status_code, refused.json()["limit"]) == (413, 20)
        assert server.get("/models/vectors/info").json()["max_input_length"] == 20
        del long["truncate"]
        assert server.post("/models/vectors/embed", long).status_code == 200
    finally:
        del about["cut_at"]


def test_predict(server: Running) -> None:
    model = offline(server.folders["classes"])
    expected = model.predict([TEXT])
    found = ask(server, "classes", "/predict", inputs=TEXT)
    pairs = [(one["label"], one["score"]) for one in found]
    assert pairs == sorted_labels(expected.values[0], expected.names)
    assert ask(server, "classes", "/predict", inputs=[[TEXT], [OTHER]])[0] == found
    raw = ask(server, "classes", "/predict", inputs=TEXT, raw_scores=True)
    pairs = [(one["label"], one["score"]) for one in raw]
    assert pairs == sorted_labels(expected.logits[0], expected.names)
    of_pair = ask(server, "reranker", "/predict", inputs=[TEXT, OTHER])
    value = offline(server.folders["reranker"]).predict([TEXT], [OTHER]).values[0, 0]
    assert of_pair == [{"label": "score", "score": value}]
    long = {"inputs": " ".join(["w5"] * 90), "truncate": False}
    refused = server.post("/models/classes/predict", long)
    assert (refused.status_code, refused.json()["limit"]) == (413, 40)


def test_rerank(server: Running) -> None:
    texts = ["w9", "w8 w7", "w6"]
    ranked = offline(server.folders["reranker"]).rank(TEXT, texts)
    expected = [{"index": one.index, "score": one.score} for one in ranked]
    assert ask(server, "reranker", "/rerank", query=TEXT, texts=texts) == expected
    found = ask(server, "reranker", "/rerank", query=TEXT, texts=texts, return_text=True)
    assert [one["text"] for one in found] == [one.text for one in ranked]


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank"])
def test_ranks_for_clients_of_cohere_and_jina(server: Running, path: str) -> None:
    texts = ["w9", "w8 w7", "w6"]
    ranked = offline(server.folders["reranker"]).rank(TEXT, texts)
    asked = {"model": "reranker", "query": TEXT, "documents": texts}
    found = server.post(path, asked).json()
    expected = [{"index": one.index, "relevance_score": one.score} for one in ranked]
    assert found["results"] == expected
    assert found["model"] == "reranker"
    assert found["usage"]["total_tokens"] > 0
    documents = [{"text": text} for text in texts]
    more = {"documents": documents, "top_n": 2, "return_documents": True}
    found = server.post(path, {**asked, **more}).json()
    assert found["results"] == [
        {**row, "document": {"text": texts[row["index"]]}} for row in expected[:2]
    ]
    for wrong, status, said in (
        ({"model": "elsewhere"}, 404, "no such model; there are: "),
        ({"model": "vectors"}, 422, "does not do text-ranking"),
        ({"top_n": 0}, 422, "`int` >= 1"),
        ({"rank_fields": ["text"]}, 422, "unknown field `rank_fields`"),
        ({"documents": []}, 422, "documents is empty"),
        ({"documents": [{"title": "w1"}]}, 422, "unknown field"),
        ({"documents": [[1, 2]]}, 422, "got `array`"),
    ):
        refused = server.post(path, {**asked, **wrong})
        assert (refused.status_code, said in refused.text) == (status, True), refused.text
    below = {"query": TEXT, "documents": texts}
    assert server.post("/models/reranker/v1/rerank", below).json()["results"] == expected


def test_similarity_tokenize_decode(server: Running) -> None:
    inputs = {"source_sentence": TEXT, "sentences": [OTHER]}
    (found,) = ask(server, "vectors", "/similarity", inputs=inputs)
    assert found == pytest.approx(cosine(offline(server.folders["vectors"]), OTHER))
    (tokens,) = ask(server, "vectors", "/tokenize", inputs="w1 w2")
    assert [one["text"] for one in tokens] == ["[CLS]", "w1", "w2", "[SEP]"]
    assert tokens[2] == {"id": 7, "text": "w2", "special": False, "start": 3, "stop": 5}
    (own,) = ask(server, "vectors", "/tokenize", inputs="w1", add_special_tokens=False)
    assert [one["text"] for one in own] == ["w1"]
    assert ask(server, "vectors", "/decode", ids=[t["id"] for t in tokens]) == ["w1 w2"]


# ----------------------------------------------------------------------------------------- our own


def test_choose_and_next_sentence(server: Running) -> None:
    choices = ["w4", "w5 w6"]
    found = ask(server, "choice", "/choose", context=TEXT, choices=choices)
    expected = offline(server.folders["choice"]).choose(TEXT, choices)
    assert found == {"probabilities": expected}
    follows = ask(server, "pretrained", "/next-sentence", text=TEXT, text_pair=OTHER)
    value = offline(server.folders["pretrained"]).next_sentence(TEXT, OTHER)
    assert follows == {"probability": value}


@pytest.mark.parametrize(
    ("path", "name", "body"),
    [
        ("/", "classes", {"inputs": TEXT}),
        ("/predict", "classes", {"inputs": TEXT}),
        ("/tokenize", "classes", {"inputs": TEXT}),
        ("/embed", "vectors", {"inputs": TEXT}),
        ("/pipeline/ner", "tags", {"inputs": TEXT}),
        ("/rerank", "reranker", {"query": TEXT, "texts": [OTHER]}),
        ("/similarity", "vectors", {"inputs": {"source_sentence": TEXT, "sentences": [OTHER]}}),
        ("/", "answers", {"inputs": {"question": TEXT, "context": OTHER}}),
        ("/attention", "", {"text": TEXT}),
    ],
)
def test_routes_without_a_model_mean_that_of_the_task(
    server: Running, path: str, name: str, body: Any
) -> None:
    found = server.post(path, body)
    if name:
        assert found.json() == server.post(f"/models/{name}{path.rstrip('/')}", body).json()
    assert found.status_code == (200 if name else 422)
    assert name or "several models do attention; name one of them: classes" in found.text


def test_vectors_are_not_a_taggers_unless_it_is_meant(tmp_path: Path) -> None:
    with running(make_folders(tmp_path, "tags", "pretrained")) as server:
        refused = server.post("/embed", {"inputs": TEXT})
        assert refused.status_code == 422
        assert "name one of them: tags, pretrained" in refused.text
    with running(make_folders(tmp_path, "tags")) as server:
        assert server.post("/embed", {"inputs": TEXT}).status_code == 200


def test_the_page_and_metrics(server: Running) -> None:
    page = server.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    metrics = server.get("/metrics").text
    assert 'bothways_requests_total{model="classes",route="/models/{model}",status="200"}' in (
        metrics
    )
    assert "bothways_in_flight 1.0" in metrics  # this one
