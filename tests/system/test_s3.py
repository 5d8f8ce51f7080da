"""Object storage as blobs: against Ceph's radosgw, and against a scripted server for what a sound one does not do."""
import contextlib
import os
import pathlib
import random
import re
import signal
import subprocess
import threading

import pytest

import fake_s3
import radosgw
from fake_s3 import FakeS3

BUILD = pathlib.Path(os.environ["RINGFOLD_BUILD"]).resolve()
BLOBS = str(BUILD / "tests" / "blobs")
DEADLINE_S = 120
MIB = 1 << 20
PART = 8 * MIB


def environment(server, **more):
    kept = {k: v for k, v in os.environ.items() if not k.startswith("AWS_") and not k.lower().endswith("_proxy")}
    return {**kept, "HOME": "/nonexistent", **server.environment(), **more}


def some_bytes(count, seed=1):
    """The same bytes for the same seed, without a period that a part's size divides."""
    block = bytes((i * i * 31 + i * seed + (i >> 8)) & 255 for i in range(65521))
    return (block * (count // len(block) + 1))[:count]


class Program:
    """The blobs program at one server and root."""

    def __init__(self, server, bucket, root="run", scheme="s3", **variables):
        self.server, self.uri, self.variables = server, f"{scheme}://{bucket}/{root}", variables

    def command(self, *words, options=()):
        return [BLOBS, *map(str, options), self.uri, *map(str, words)]

    def start(self, *words, options=()):
        return subprocess.Popen(self.command(*words, options=options), env=environment(self.server, **self.variables),
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def run(self, *words, options=(), data=b"", code=0):
        done = subprocess.run(self.command(*words, options=options), env=environment(self.server, **self.variables),
                              input=data, capture_output=True, timeout=DEADLINE_S)
        errors = done.stderr.decode()
        assert "Sanitizer" not in errors, errors
        assert done.returncode == code, errors
        return done.stdout, re.sub(r"^(written|read) \d+\n", "", errors, flags=re.M)

    def put(self, name, data, options=(), code=0):
        return self.run("put", "-", name, options=options, data=data, code=code)[1]

    def get(self, name, options=()):
        return self.run("get", name, options=options)[0]

    def fails(self, *words, options=(), data=b""):
        return self.run(*words, options=options, data=data, code=1)[1]

    def names(self, prefix="", options=()):
        return [line.split(" ", 2)[2] for line in self.run("list", prefix, options=options)[0].decode().splitlines()]


def wait_for_line(process, wanted):
    """Reads standard error up to that line."""
    for line in process.stderr:
        if line.decode().strip() == wanted:
            return
    raise AssertionError(f"the program ended before '{wanted}'")


# ---- a real server ----

@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    yield from radosgw.running(tmp_path_factory.mktemp("radosgw"))


@pytest.fixture
def real(gateway, request):
    return Program(gateway, gateway.bucket, request.node.name)


@pytest.mark.parametrize("count", [0, 1, 5 * MIB, PART, PART + 1, 40 * MIB])
def test_what_is_written_is_read(real, count):
    data = some_bytes(count)
    assert real.put("step-1/part", data) == ""
    assert real.get("step-1/part") == data
    assert real.run("list", "step-1/")[0].decode().split()[0] == str(count)


def test_odd_names_are_signed_rightly(real):
    name = "a=b/c d+e%2F&f'(g)*/\u00fc~$@:,;?#[h]"
    real.put(name, b"small")
    real.put(name + "-large", some_bytes(PART + 5))
    assert real.get(name) == b"small"
    assert real.names("a=b/c d+") == [name, name + "-large"]
    real.run("remove", name)
    assert real.names() == [name + "-large"]


def test_a_blob_is_replaced_or_kept(real):
    real.put("x", b"first")
    assert "RF_ECONFLICT" in real.put("x", b"second", options=["--new"], code=1)
    large = some_bytes(PART + 1)
    assert "RF_ECONFLICT" in real.put("x", large, options=["--new"], code=1)
    assert real.server.uploads() == 0
    assert real.get("x") == b"first"
    real.put("x", b"third")
    assert real.get("x") == b"third"
    assert real.put("y", large, options=["--new"]) == ""
    assert real.get("y") == large


def test_one_of_two_writers_wins(real):
    for turn in range(5):
        racers = [real.start("put", "-", f"manifest-{turn}", options=["--new"]) for _ in range(2)]
        for number, racer in enumerate(racers):
            racer.stdin.write(f"racer {number}".encode())
        for racer in racers:
            racer.stdin.close()
        codes = []
        for racer in racers:
            errors = racer.stderr.read().decode()
            codes.append(racer.wait(DEADLINE_S))
            assert codes[-1] == 0 or "RF_ECONFLICT" in errors, errors
        assert sorted(codes) == [0, 1]
        assert real.get(f"manifest-{turn}") == f"racer {codes.index(0)}".encode()


def test_what_is_not_there(real):
    error = real.fails("get", "nothing")
    assert "RF_ENOTFOUND" in error and f"{real.server.bucket}/{real.uri.rsplit('/', 1)[1]}/nothing" in error
    assert "RF_ENOTFOUND" in real.fails("remove", "nothing")
    assert real.names() == []
    elsewhere = Program(real.server, "no-such-bucket")
    for words in (["get", "x"], ["list", ""], ["put", "/dev/null", "x"], ["collect", "", "0"]):
        error = elsewhere.fails(*words)
        assert "RF_EIO" in error and "NoSuchBucket" in error, error
        assert f"next create it: aws s3 mb s3://no-such-bucket --endpoint-url {real.server.endpoint}" in error
        assert f"127.0.0.1:{real.server.port}" in error


def test_wrong_keys_are_named_and_not_shown(real, tmp_path):
    wrong = Program(real.server, real.server.bucket, AWS_SECRET_ACCESS_KEY="hush+hush")
    for words in (["get", "x"], ["list", ""], ["put", "/dev/null", "x"]):
        error = wrong.fails(*words)
        assert "403 SignatureDoesNotMatch" in error and "next check AWS_SECRET_ACCESS_KEY of the environment" in error
        assert "hush" not in error
    wrong.variables = {"AWS_ACCESS_KEY_ID": "NOBODY"}
    assert "next check AWS_ACCESS_KEY_ID" in wrong.fails("list", "")
    profile = tmp_path / "credentials"
    profile.write_text(f"[lab]\naws_access_key_id={radosgw.KEY}\naws_secret_access_key=hush+hush\n")
    wrong.variables = {"AWS_PROFILE": "lab", "AWS_SHARED_CREDENTIALS_FILE": str(profile), "AWS_ACCESS_KEY_ID": ""}
    error = wrong.fails("list", "")
    assert f"next check AWS_SECRET_ACCESS_KEY of profile lab in {profile}" in error and "hush" not in error
    profile.write_text(f"[lab]\naws_access_key_id={radosgw.KEY}\naws_secret_access_key={radosgw.SECRET}\n")
    assert wrong.fails("get", "nothing").startswith("RF_ENOTFOUND")


def test_lists_are_read_in_pages(real):
    names = [f"step-{i}/part" for i in range(7)]
    for name in names:
        real.put(name, name.encode())
    for size in (1, 2, 3, 7, 1000):
        assert real.names(options=["--max-keys", size]) == names
    assert real.names("step-3") == ["step-3/part"]
    assert real.names("step-9") == []


def test_unfinished_uploads_are_collected(real):
    for name in ("a/left", "a/left", "b/left"):
        real.run("leave", "-", name, data=some_bytes(2 * PART))
    assert real.server.uploads() == 3 and real.names() == []
    assert real.run("collect", "", "3600")[0] == b"0\n"
    assert real.run("collect", "a/", "0", options=["--max-keys", 1])[0] == b"2\n"
    assert real.server.uploads() == 1
    assert real.run("collect", "", "0")[0] == b"1\n"
    assert real.server.uploads() == 0
    real.run("drop", "-", "c", data=some_bytes(2 * PART))
    assert real.server.uploads() == 0


def test_a_blob_that_is_replaced_while_it_is_read(real):
    data = some_bytes(40000)
    real.put("x", data)
    reader = real.start("get", "x", options=["--step", "--chunk-bytes", 10000])
    wait_for_line(reader, "read 10000")
    real.put("x", some_bytes(40000, seed=2))
    output, errors = reader.communicate(b"\n" * 4, timeout=DEADLINE_S)
    assert reader.returncode == 1 and b"replaced" in errors and b"RF_EIO" in errors, errors
    assert output == data[:10000]


def test_a_server_that_is_killed_in_the_middle_of_an_upload(real):
    data = some_bytes(4 * PART + 77)
    writer = real.start("put", "-", "x", options=["--deadline-ms", 100000])
    writer.stdin.write(data[:2 * PART + 2 * MIB])
    writer.stdin.flush()
    wait_for_line(writer, f"written {2 * PART + MIB}")  # so two parts are there
    real.server.kill()
    rest = threading.Thread(target=lambda: (writer.stdin.write(data[2 * PART + 2 * MIB:]), writer.stdin.close()))
    rest.start()
    real.server.start()
    errors = writer.stderr.read()
    rest.join()
    assert writer.wait(DEADLINE_S) == 0, errors
    assert real.get("x") == data
    assert real.server.uploads() == 0


# ---- a scripted server ----

@pytest.fixture
def fake():
    with FakeS3() as server:
        yield server


@pytest.fixture
def program(fake):
    return Program(fake, fake_s3.BUCKET)


@contextlib.contextmanager
def other(**how):
    with FakeS3(**how) as server:
        yield server, Program(server, fake_s3.BUCKET)


def test_a_name_that_is_free_is_free_whatever_the_explanation_is(program, fake):
    """HEAD tells that there is nothing; the GET that is to tell why meets a passing error."""
    for fault in (fake_s3.status(503, "SlowDown"), fake_s3.unheard, fake_s3.cut_after(10)):
        fake.fail("GET", "x", fault)
        assert program.fails("get", "x").startswith("RF_ENOTFOUND")


@pytest.mark.parametrize("number, code", [(500, "InternalError"), (503, "SlowDown"), (502, ""), (429, "TooManyRequests"),
                                          (400, "RequestTimeout")])
def test_passing_errors_are_waited_out(program, fake, number, code):
    data = some_bytes(PART + 100)
    for verb in ("PUT", "POST", "GET", "HEAD", "DELETE"):
        fake.fail(verb, "x", fake_s3.status(number, code), times=2)
    fake.fail("GET", "", fake_s3.status(number, code), times=1, query="list-type")
    assert program.put("x", data) == ""
    if (number, code) != (400, "RequestTimeout"):  # HEAD shows no code
        assert program.get("x") == data
        assert program.names() == ["x"]
        program.run("remove", "x")
        assert not fake.objects


def test_connections_that_break(program, fake):
    data = some_bytes(2 * PART)
    for fault in (fake_s3.unheard, fake_s3.lost):
        fake.fail("PUT", "x", fault)
        fake.fail("POST", "x", fault, query="uploads")
    fake.fail("POST", "x", fake_s3.unheard, query="uploadId")
    assert program.put("x", data) == ""
    for count in (0, 1, 300000):
        fake.fail("GET", "x", fake_s3.cut_after(count))
    assert program.get("x", options=["--chunk-bytes", 2 * PART]) == data
    ranges = [r["headers"]["Range"] for r in fake.seen("GET", "x")]
    assert ranges[0] == f"bytes=0-{2 * PART - 1}" and ranges[-1] != ranges[0]  # it goes on where it was cut


def test_a_part_that_failed_is_sent_again_and_no_other(program, fake):
    fake.fail("PUT", "x", fake_s3.unheard, times=2, query="partNumber")
    program.put("x", some_bytes(3 * PART))
    sent = [r["query"]["partNumber"] for r in fake.seen("PUT", "x")]
    assert sent == ["1", "1", "1", "2", "3"]


def test_a_write_that_failed_may_be_repeated(program, fake):
    """What the server has of it is not sent again."""
    data = some_bytes(3 * PART + 5)
    fake.fail("PUT", "x", lambda handler, act: fake.fail("PUT", "x", fake_s3.status(403, "AccessDenied")) or handler.answer(*act()))
    assert program.put("x", data, options=["--again", "--chunk-bytes", len(data)]) == ""
    assert [r["query"]["partNumber"] for r in fake.seen("PUT", "x")] == ["1", "2", "2", "3", "4"]
    assert fake.objects["run/x"][0] == data
    # By parts that were kept, as well as by parts that were not.
    fake.fail("PUT", "y", fake_s3.status(403, "AccessDenied"))
    assert program.put("y", data, options=["--again", "--chunk-bytes", 3 * MIB + 1]) == ""
    assert fake.objects["run/y"][0] == data
    fake.fail("PUT", "z", fake_s3.status(403, "AccessDenied"))
    assert "403 AccessDenied" in program.put("z", data, code=1) and not fake.uploads


@pytest.mark.parametrize("words", [["put", "-", "x"], ["get", "y"], ["list", ""], ["remove", "y"], ["collect", "", "0"]],
                         ids=lambda words: words[0])
def test_every_allocation_fails_once(program, fake, words):
    data = some_bytes(PART + 1)
    for k in range(200):
        fake.objects["run/y"] = (b"y", {"ETag": '"e"'})
        fake.objects.pop("run/x", None)
        fake.uploads["old"] = {"key": "run/old", "parts": {}, "headers": {}, "begun": 0}
        done = subprocess.run(program.command(*words, options=["--new", "--fail-alloc", k, "--chunk-bytes", 5 * MIB]),
                              env=environment(fake), input=data, capture_output=True, timeout=DEADLINE_S)
        errors = done.stderr.decode()
        assert "Sanitizer" not in errors and done.returncode in (0, 1), errors
        if set(fake.uploads) - {"old"}:  # the answer that named it was lost; collecting finds it
            program.run("collect", "", "0")
            assert not fake.uploads
        assert ("run/x" in fake.objects) == (words[0] == "put" and done.returncode == 0)
        if done.returncode == 0:
            assert k > 0
            return
        assert "RF_ENOMEM" in errors, errors
    raise AssertionError("no pass was clean")


def test_errors_that_last_are_told(program, fake):
    fake.fail("PUT", "x", fake_s3.status(503, "SlowDown"), times=1000)
    error = program.put("x", b"1", options=["--deadline-ms", 1500], code=1)
    assert "RF_ETIMEDOUT" in error and "503 SlowDown" in error and "tries in" in error
    assert "bucket/run/x" in error and "request-77" in error
    assert len(fake.seen("PUT", "x")) > 1
    assert not fake.objects


def test_retry_after_is_honoured(program, fake):
    fake.fail("PUT", "x", fake_s3.status(503, "SlowDown", {"Retry-After": "3600"}))
    error = program.put("x", b"1", code=1)  # longer than the deadline: not waited for
    assert "RF_ETIMEDOUT" in error and "(1 try " in error
    fake.fail("PUT", "y", fake_s3.status(503, "SlowDown", {"Retry-After": "1"}))
    assert program.put("y", b"1") == ""
    error = program.put("y", b"1", options=["--deadline-ms", 900], code=0)
    fake.fail("PUT", "y", fake_s3.status(503, "SlowDown", {"Retry-After": "1"}))
    assert "(1 try " in program.put("y", b"1", options=["--deadline-ms", 900], code=1)


@pytest.mark.parametrize("number, code", [(403, "AccessDenied"), (400, "EntityTooSmall"), (404, "NoSuchBucket"), (405, "")])
def test_what_cannot_pass_is_not_tried_again(program, fake, number, code):
    fake.fail("PUT", "x", fake_s3.status(number, code), times=1000)
    error = program.put("x", b"1", code=1)
    assert "RF_EIO" in error and f"{number} {code}" in error and re.search(r"^next \w", error, re.M)
    assert len(fake.seen("PUT", "x")) == 1


def test_a_stalled_server_is_left(program, fake):
    data = some_bytes(3 * MIB)
    fake.objects["run/x"] = (data, {"ETag": '"e"'})
    fake.fail("GET", "x", fake_s3.stalled)
    fake.fail("GET", "x", fake_s3.stalled_after(MIB // 2))
    fake.fail("PUT", "y", fake_s3.stalled)
    assert program.get("x", options=["--stall-s", 1, "--chunk-bytes", 3 * MIB]) == data
    assert program.put("y", b"1", options=["--stall-s", 1]) == ""
    fake.fail("PUT", "y", fake_s3.stalled, times=1000)
    error = program.put("y", b"1", options=["--stall-s", 1, "--deadline-ms", 2000], code=1)
    assert "RF_ETIMEDOUT" in error and "tries in" in error


def test_calls_are_interrupted(program, fake):
    heard = threading.Event()

    def stall(handler, act):
        heard.set()
        fake_s3.stalled(handler, act)

    fake.fail("PUT", "x", stall)
    writer = program.start("put", "/dev/null", "x", options=["--stall-s", 1000, "--deadline-ms", 1000000])
    assert heard.wait(DEADLINE_S)
    writer.send_signal(signal.SIGTERM)
    _, errors = writer.communicate(timeout=30)
    assert writer.returncode == 1 and b"RF_ESTOPPED" in errors
    # Also while it waits between tries.
    heard.clear()

    def slow_down(handler, act):
        heard.set()
        fake_s3.status(503, "SlowDown", {"Retry-After": "900"})(handler, act)

    fake.fail("PUT", "x", slow_down)
    writer = program.start("put", "/dev/null", "x", options=["--deadline-ms", 1000000])
    assert heard.wait(DEADLINE_S)
    writer.send_signal(signal.SIGTERM)
    _, errors = writer.communicate(timeout=30)
    assert writer.returncode == 1 and b"RF_ESTOPPED" in errors


# Names that must be new.

def test_an_own_try_whose_answer_was_lost_is_success(program, fake):
    fake.fail("PUT", "x", fake_s3.lost)
    assert program.put("x", b"mine", options=["--new"]) == ""
    assert len(fake.seen("PUT", "x")) == 2  # the second got 412
    large = some_bytes(PART + 1)
    fake.fail("POST", "y", fake_s3.lost, query="uploadId")
    assert program.put("y", large, options=["--new"]) == ""  # the second got 404: the upload is gone
    fake.fail("POST", "z", fake_s3.lost, query="uploadId")
    assert program.put("z", large) == ""
    assert program.get("y") == large and program.get("z") == large and not fake.uploads


def test_anothers_write_of_the_same_bytes_is_a_conflict(program, fake):
    program.put("x", b"same")

    def refuse(handler, act):  # the answer of an earlier try is lost, which did nothing
        handler.reset()

    fake.fail("PUT", "x", refuse)
    assert "RF_ECONFLICT" in program.put("x", b"same", options=["--new"], code=1)


def test_a_server_that_keeps_no_marks_is_asked_for_the_digest(program, fake):
    """Where what stands there bears no mark of its writer, its size and ETag decide."""
    def strip(handler, act):
        act()
        body, headers = fake.objects["run/x"]
        fake.objects["run/x"] = body, {"ETag": headers["ETag"]}
        handler.reset()

    fake.fail("PUT", "x", strip)
    assert program.put("x", b"mine", options=["--new"]) == ""


@pytest.mark.parametrize("code", ["ConditionalRequestConflict"])
def test_a_conditional_conflict_is_a_conflict(program, fake, code):
    fake.fail("PUT", "x", fake_s3.status(409, code))
    assert "RF_ECONFLICT" in program.put("x", b"1", options=["--new"], code=1)
    fake.fail("POST", "x", fake_s3.status(409, code), query="uploadId")
    assert "RF_ECONFLICT" in program.put("x", some_bytes(PART + 1), options=["--new"], code=1)
    assert not fake.uploads


@pytest.mark.parametrize("answer", [(501, "NotImplemented"), (400, "NotImplemented"), (501, "")])
def test_a_server_without_conditional_puts(answer):
    with other(conditional=answer) as (fake, program):
        assert program.put("x", b"first", options=["--new"]) == "unconditional\n"
        assert [r["verb"] for r in fake.requests] == ["PUT", "HEAD", "GET", "PUT"]
        error = program.put("x", b"second", options=["--new"], code=1)
        assert "RF_ECONFLICT" in error and "unconditional" in error
        large = some_bytes(PART + 1)
        assert "unconditional" in program.put("y", large, options=["--new"])
        assert "RF_ECONFLICT" in program.put("y", large, options=["--new"], code=1)
        assert fake.objects["run/x"][0] == b"first" and not fake.uploads
        assert program.put("x", b"third") == ""


def test_a_large_blob_looks_before_it_is_completed():
    with other(conditional="ignored") as (fake, program):
        large = some_bytes(PART + 1)
        assert program.put("x", large, options=["--new"]) == ""
        assert "RF_ECONFLICT" in program.put("x", large, options=["--new"], code=1)
        assert not fake.uploads


# Completing an upload.

def test_an_error_in_a_completion_that_began_well(program, fake):
    data = some_bytes(PART + 1)
    fake.fail("POST", "x", fake_s3.says(200, fake_s3.error_body("InternalError")), times=2, query="uploadId")
    assert program.put("x", data) == ""
    assert fake.objects["run/x"][0] == data
    fake.fail("POST", "y", fake_s3.says(200, fake_s3.error_body("InvalidPart")), query="uploadId")
    error = program.put("y", data, code=1)
    assert "RF_EIO" in error and "InvalidPart" in error
    assert "run/y" not in fake.objects and not fake.uploads


def test_a_completion_that_stalls_is_asked_for_again(program, fake):
    def silent(handler, act):
        act()
        fake_s3.stalled(handler, act)

    fake.fail("POST", "x", silent, query="uploadId")
    assert program.put("x", some_bytes(PART + 1), options=["--deadline-ms", 3000, "--new"]) == ""
    assert len(fake.seen("POST", "x", "uploadId")) == 2 and not fake.uploads


@pytest.mark.parametrize("body", [b"", b"<CompleteMultipartUploadResult><ETag>", b"OK", b"<html/>"])
def test_a_completion_that_says_nothing(program, fake, body):
    data = some_bytes(PART + 1)
    fake.fail("POST", "x", fake_s3.says(200, body), query="uploadId")
    error = program.put("x", data, code=1)
    assert "RF_EPROTO" in error and "does not say" in error and "run/x" not in fake.objects
    fake.fail("POST", "x", fake_s3.says(200, body, do=True), query="uploadId")
    assert program.put("x", data) == ""
    assert fake.objects["run/x"][0] == data


def test_an_upload_without_a_name_or_an_etag(program, fake):
    data = some_bytes(PART + 1)
    for body in (b"", b"<InitiateMultipartUploadResult/>", b"<InitiateMultipartUploadResult><UploadId></UploadId>"):
        fake.fail("POST", "x", fake_s3.says(200, body), query="uploads")
        assert "RF_EPROTO" in program.put("x", data, code=1)
    fake.fail("PUT", "x", fake_s3.says(200, b""), query="partNumber")
    assert "tells no ETag" in program.put("x", data, code=1)
    assert not fake.uploads and not fake.objects


# Answers that cannot be.

@pytest.mark.parametrize("number", [301, 307, 400])
def test_another_region_is_named(program, fake, number):
    code = {301: "PermanentRedirect", 307: "TemporaryRedirect", 400: "AuthorizationHeaderMalformed"}[number]
    away = {"x-amz-bucket-region": "eu-west-3", "Location": "http://127.0.0.1:1/"}
    for verb in ("GET", "PUT", "HEAD"):
        fake.fail(verb, "", fake_s3.status(number, code, away), times=1000)
    for words in (["get", "x"], ["list", ""], ["put", "/dev/null", "x"]):
        error = program.fails(*words)
        assert "set AWS_REGION=eu-west-3" in error and "us-east-1" in error, error
    assert all(r["key"] for r in fake.requests if r["verb"] != "GET")
    for verb in ("GET", "PUT", "HEAD"):
        fake.fail(verb, "", fake_s3.status(number, code), times=1000)


def test_a_region_that_only_the_body_names(program, fake):
    fake.fail("PUT", "x", fake_s3.status(400, "AuthorizationHeaderMalformed", more="<Region>sa-east-1</Region>"))
    assert "set AWS_REGION=sa-east-1" in program.put("x", b"", code=1)


def test_a_wrong_clock_is_named_with_both_times(program, fake):
    times = "<RequestTime>20260101T000000Z</RequestTime><ServerTime>2026-01-02T00:00:00Z</ServerTime>"
    fake.fail("PUT", "x", fake_s3.status(403, "RequestTimeTooSkewed", more=times))
    error = program.put("x", b"", code=1)
    assert "20260101T000000Z" in error and "2026-01-02T00:00:00Z" in error and "next set this host's clock" in error


def test_lengths_that_lie(program, fake):
    data = some_bytes(3000)
    fake.objects["run/x"] = (data, {"ETag": '"e"'})
    # A body shorter than it says: read on. Longer than was asked for, or from elsewhere: no.
    fake.fail("GET", "x", fake_s3.changed(headers={"Content-Length": "3000", "Connection": "close"}, body=lambda b: b[:1000]))
    assert program.get("x") == data
    for lie in (dict(body=lambda b: b + b"more"), dict(headers={"Content-Range": "bytes 1-3000/3001"}),
                dict(headers={"Content-Range": "bytes 0-2999/9999"}), dict(headers={"Content-Range": "bytes 0-2999/2"}),
                dict(headers={"Content-Range": "x" * 90}), dict(headers={"ETag": '"another"'}), dict(number=200, headers={"ETag": ""})):
        fake.fail("GET", "x", fake_s3.changed(**lie), times=1)
        error = program.fails("get", "x")
        assert "RF_EIO" in error and "RF_E?" not in error, (lie, error)
    # One range after the other, each shorter than asked.
    fake.fail("GET", "x", lambda handler, act: handler.answer(206, {"Content-Range": "bytes 0-9/3000", "ETag": '"e"'}, data[:10]))
    assert program.get("x") == data
    # Ranges that the server does not know are right where the whole was asked for.
    fake.fail("GET", "x", lambda handler, act: handler.answer(200, {"ETag": '"e"'}, data))
    assert program.get("x") == data
    fake.fail("GET", "x", lambda handler, act: handler.answer(200, {"ETag": '"e"'}, data))
    assert "RF_EIO" in program.fails("get", "x", options=["--chunk-bytes", 1000])
    fake.fail("HEAD", "x", fake_s3.changed(headers={"ETag": ""}))
    assert "no ETag" in program.fails("get", "x")


BAD_LISTS = [
    b"", b"nonsense", b"<ListBucketResult>", b"<ListBucketResult><Contents><Key>run/x</Key></Contents></ListBucketResult>",
    b"<html><body>proxy</body></html>",
    b"<!DOCTYPE x [<!ENTITY a 'b'>]><ListBucketResult/>",
    b"<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>",
    b"<ListBucketResult><Contents><Key>else/x</Key><Size>1</Size><LastModified>2026-01-01T00:00:00Z</LastModified></Contents>"
    b"</ListBucketResult>",
    b"<ListBucketResult><Contents><Key>run/x</Key><Size>-1</Size><LastModified>2026-01-01T00:00:00Z</LastModified></Contents>"
    b"</ListBucketResult>",
    b"<ListBucketResult><Contents><Key>run/" + b"x" * 1100 + b"</Key></Contents></ListBucketResult>",
    b"<a>" * 1000,
]


@pytest.mark.parametrize("body", BAD_LISTS, ids=range(len(BAD_LISTS)))
def test_lists_that_cannot_be(program, fake, body):
    fake.fail("GET", "", fake_s3.says(200, body), query="list-type")
    error = program.fails("list", "")
    assert "RF_EPROTO" in error and re.search(r"^next \w", error, re.M)
    fake.fail("GET", "", fake_s3.says(200, body.replace(b"ListBucket", b"ListMultipartUploads").replace(b"Contents", b"Upload")),
              query="uploads")
    assert "RF_EPROTO" in program.fails("collect", "", "0")


def test_lists_without_an_end(program, fake):
    entry = b"<Contents><Key>run/x</Key><Size>1</Size><LastModified>2026-01-01T00:00:00Z</LastModified></Contents>"
    fake.fail("GET", "", fake_s3.endless(b"<ListBucketResult>", entry), query="list-type")
    assert "longer than it may be" in program.fails("list", "")
    page = b"<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>%s</ListBucketResult>"
    fake.fail("GET", "", fake_s3.says(200, page % entry), times=100000, query="list-type")
    assert "out of order" in program.fails("list", "")
    fake.faults.clear()
    fake.fail("GET", "", fake_s3.says(200, page % b""), times=100000, query="list-type")
    assert "pages that are empty" in program.fails("list", "")
    fake.faults.clear()
    fake.fail("PUT", "x", lambda handler, act: fake_s3.endless(b"<Error><Code>Odd</Code>", b"<a>b</a>")(handler, act))
    assert "RF_EPROTO" in program.put("x", b"1", code=1)


def test_fake_lists_are_read_in_pages(program, fake):
    names = sorted(f"a&{i}/p<" for i in range(5))
    for name in names:
        fake.objects["run/" + name.replace("<", "")] = (b"", {"ETag": '"e"'})
    fake.objects["run/"] = (b"", {"ETag": '"e"'})  # a folder's mark is no blob
    assert program.names(options=["--max-keys", 2]) == [n.replace("<", "") for n in names]


def test_a_message_that_repeats_a_secret_is_withheld(program, fake):
    fake.fail("PUT", "x", fake_s3.says(403, b"<Error><Code>Odd</Code><Message>you sent fake+secret/words\n</Message></Error>"))
    error = program.put("x", b"1", code=1)
    assert "403 Odd" in error and "withheld" in error and "fake+secret" not in error


def test_bytes_that_did_not_arrive_whole_are_sent_again(program, fake):
    data = some_bytes(PART + 1)
    fake.fail("PUT", "x", fake_s3.status(400, "BadDigest"), times=2)
    assert program.put("x", data) == "" and fake.objects["run/x"][0] == data
    assert all("content-md5" in r["headers"] for r in fake.seen("PUT", "x"))


def test_many_threads_at_once(program, fake):
    for verb in ("PUT", "GET", "HEAD", "DELETE"):
        fake.fail(verb, "", fake_s3.unheard, times=2)
    assert program.run("storm", "10")[1] == ""
    assert not fake.objects and not fake.uploads


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_server_that_fails_in_every_way(program, fake, seed):
    """Two of five requests fail somehow; what is written and read is right all the same."""
    rng = random.Random(seed)
    ways = [fake_s3.unheard, fake_s3.lost, fake_s3.status(503, "SlowDown"), fake_s3.status(500, "InternalError"),
            fake_s3.says(200, fake_s3.error_body("InternalError")), fake_s3.cut_after(1000), fake_s3.garbage]

    def perhaps(handler, act):
        with fake.lock:
            way = rng.choice(ways) if rng.random() < 0.4 else None
        # A range that is answered by an error in a 200 is no passing error, and HEAD has no body.
        if way is ways[4] and handler.command in ("GET", "HEAD"):
            way = fake_s3.unheard
        if way:
            way(handler, act)
        else:
            handler.answer(*act())

    for verb in ("PUT", "GET", "HEAD", "POST", "DELETE"):
        fake.fail(verb, "", perhaps, times=1000000)
    program.run("storm", "10")
    assert all(u["key"].startswith("run/storm/") for u in fake.uploads.values())  # begun, and the answer lost
    fake.faults.clear()
    program.run("collect", "", "0")
    assert not fake.uploads and not fake.objects


def test_certificates_are_checked(tmp_path):
    both, key = tmp_path / "both.pem", tmp_path / "key.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", both, "-days", "2",
                    "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(both.read_bytes())
    both.write_bytes(both.read_bytes() + key.read_bytes())
    with other(certificate=both) as (fake, program):
        error = program.put("x", b"1", code=1)
        assert "RF_EIO" in error and "next set AWS_CA_BUNDLE" in error and "tries" not in error
        assert not fake.requests
        program.variables = {"AWS_CA_BUNDLE": str(trusted)}
        data = some_bytes(PART + MIB)
        assert program.put("x", data) == "" and program.get("x") == data
        parts = fake.seen("PUT", "x")
        assert all(r["headers"]["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD" and "content-md5" in r["headers"] for r in parts)
        program.variables = {"AWS_CA_BUNDLE": str(tmp_path / "nowhere.pem")}
        assert "next set AWS_CA_BUNDLE" in program.fails("get", "x")


def test_no_server_at_all(fake, program):
    program.variables = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}
    error = program.fails("list", "", options=["--deadline-ms", 700])
    assert "RF_ECONNECT" in error and "127.0.0.1:9" in error and "tries in" in error
    program.variables = {"AWS_ENDPOINT_URL": fake.endpoint.replace("http:", "https:")}
    assert "RF_E" in program.fails("list", "", options=["--deadline-ms", 700])
    program.variables = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}
    assert "next set AWS_ACCESS_KEY_ID" in program.fails("list", "")


def test_something_else_at_the_endpoint(program, fake):
    fake.fail("GET", "", fake_s3.garbage, times=1000)
    assert "RF_EIO" in program.fails("list", "") and len(fake.requests) == 5


def test_a_session_token_is_sent_and_signed(program, fake):
    program.variables = {"AWS_SESSION_TOKEN": "token+words"}
    program.put("x", b"1")
    headers = {k.lower(): v for k, v in fake.requests[0]["headers"].items()}
    assert headers["x-amz-security-token"] == "token+words"
    signed = re.search(r"SignedHeaders=([^,]+)", headers["authorization"])[1].split(";")
    assert "x-amz-security-token" in signed and "host" in signed and "expect" not in signed


def test_google_gets_its_own_words(fake):
    google = Program(fake, fake_s3.BUCKET, scheme="gs")
    at = ["--endpoint", fake.endpoint]
    google.put("x", b"1", options=["--new", *at])
    assert "RF_ECONFLICT" in google.put("x", b"2", options=["--new", *at], code=1)
    assert google.get("x", options=at) == b"1"
    large = some_bytes(PART + 1)
    google.put("y", large, options=["--new", *at])
    assert google.get("y", options=at) == large
    for request in fake.requests:
        headers = {k.lower(): v for k, v in request["headers"].items()}
        assert headers["authorization"].startswith("GOOG4-HMAC-SHA256 Credential=FAKEKEY/")
        assert "/auto/storage/goog4_request" in headers["authorization"]
        assert "x-goog-date" in headers and "x-goog-content-sha256" in headers
        assert not [name for name in headers if name.startswith("x-amz-")] and "if-none-match" not in headers
