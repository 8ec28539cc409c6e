"""Ray itself: datasets answered by actors of which one is killed, and the server's application behind Ray Serve."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from edge_rt.ray_workers import QUEUE, SLOTS, Answerer, app_builder
from tests.helpers.models import load_package

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]

EXAMPLES = Path(__file__).parents[2] / "examples"
MEMORY = 600 << 20
GREEDY = {"max_tokens": 24, "temperature": 0}
QUESTION = [{"role": "user", "content": "What is a haiku?"}]


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    """What keeps Ray from the network and from this user's home."""
    return {
        "HOME": str(tmp_path_factory.mktemp("home")),
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    }


@pytest.fixture(scope="module")
def ray(settings, tmp_path_factory):
    """Ray on two CPUs of this machine, with actors of 600 MiB."""
    ray = pytest.importorskip("ray", reason="the extra 'ray' is not installed")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        ray.init(
            num_cpus=2,
            object_store_memory=100 << 20,
            include_dashboard=False,
            # Paths of sockets have at most 107 characters.
            _temp_dir=str(tmp_path_factory.getbasetemp().parent / "ray"),
            _memory=2 * MEMORY,
            log_to_driver=False,
        )
        yield ray
        ray.shutdown()


@pytest.fixture(scope="module")
def model(native_package):
    with load_package(native_package) as model:
        yield model


def test_a_worker_that_is_killed_costs_no_answer_and_changes_none(ray, native_package, model):
    class Marked(Answerer):
        """Says which process has answered."""

        def __call__(self, batch):
            done = super().__call__(batch)
            return {**done, "pid": [os.getpid()] * len(done["answer"])}

    prompts = [f"Write {number} words about number {number % 7}." for number in range(500)]
    rows = [{"number": number, "prompt": prompt} for number, prompt in enumerate(prompts)]
    dataset = ray.data.from_items(rows, override_num_blocks=50).map_batches(
        Marked,
        fn_constructor_kwargs={"model": str(native_package), "options": GREEDY, "load": {"ctx": 256}},
        compute=ray.data.ActorPoolStrategy(size=2),
        num_cpus=1,
        memory=MEMORY,
        batch_size=10,
    )
    done, killed = [], None
    for row in dataset.iter_rows():
        done.append(row)
        if killed is None and len(done) >= 100:
            killed = int(row["pid"])
            os.kill(killed, signal.SIGKILL)
    assert Counter(row["number"] for row in done) == Counter(range(500))
    # Mostly a third process has taken the place of the one that died, unless the other was faster.
    assert len({row["pid"] for row in done} - {killed}) >= 1
    assert killed is not None
    expected = model.generate_many([[{"role": "user", "content": prompt}] for prompt in prompts], **GREEDY)
    assert {row["number"]: row["answer"] for row in done} == {n: one.text for n, one in enumerate(expected)}
    assert {row["error"] for row in done} == {""}


def test_an_actor_that_has_too_little_memory_says_so(ray, native_package):
    dataset = ray.data.from_items([{"prompt": "Hello"}]).map_batches(
        Answerer,
        fn_constructor_kwargs={"model": str(native_package)},
        compute=ray.data.ActorPoolStrategy(size=1),
        memory=50 << 20,
    )
    with pytest.raises(Exception, match="does not fit the memory"):
        dataset.take_all()


def test_the_example_answers_a_file(ray, settings, native_package, model, tmp_path):
    cluster = ray.get_runtime_context().gcs_address
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"Count to {number}."}) + "\n" for number in range(20)))
    out = tmp_path / "answers"
    done = subprocess.run(
        [sys.executable, EXAMPLES / "ray_prompts.py", str(native_package), prompts, out, "2"],
        env={**os.environ, **settings, "RAY_ADDRESS": cluster},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for file in sorted(out.glob("*.json")) for line in file.read_text().splitlines()]
    assert len(rows) == 20
    one = rows[0]
    expected = model.generate([{"role": "user", "content": one["prompt"]}], max_tokens=64, temperature=0)
    assert one["answer"] == expected.text


@pytest.fixture(scope="module")
def url(ray, native_package):
    """The application behind Serve."""
    from ray import serve

    deployment = serve.deployment(
        serve.ingress(app_builder(str(native_package), slots=2, load={"ctx": 512}))(),
        ray_actor_options={"num_cpus": 1, "memory": MEMORY},
        max_ongoing_requests=SLOTS + QUEUE,
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(deployment.bind())
    yield f"http://127.0.0.1:{port}/v1"
    serve.shutdown()


def test_the_client_of_openai_has_the_same_answers_through_serve(url, model):
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
    expected = model.generate(QUESTION, **GREEDY).text
    done = client.chat.completions.create(model="default", messages=QUESTION, **GREEDY)
    assert done.choices[0].message.content == expected
    sampled = {"max_tokens": 200, "temperature": 1.0, "seed": 3}
    stream = client.chat.completions.create(model="default", messages=QUESTION, stream=True, **sampled)
    pieces = [chunk.choices[0].delta.content for chunk in stream if chunk.choices]
    assert "".join(filter(None, pieces)) == model.generate(QUESTION, **sampled).text
    assert len(pieces) > 20
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(model="default", messages=QUESTION, temperature=-1)
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="another", messages=QUESTION)
    assert [one.id for one in client.models.list()]
