"""Every kind of failure against real training, a fault every second and a half: one history, no step lost."""
import json
import os
import subprocess

from helpers import RINGFOLD, environment

DATA = "/usr/share/datasets/fashion-mnist"
MINUTES = int(os.environ.get("RINGFOLD_SOAK_MINUTES", "1"))


def test_minutes_of_everything(tmp_path):
    done = subprocess.run([RINGFOLD, "drill", "-n", "6", "--workers", "3:9", "--minutes", str(MINUTES), "--mtbf", "1.5s", "--seed", "1",
                           "--faults", "kill,freeze,slow,cut,join,flip,store", "--detect", "1s", "--settle", "3m",
                           "--json", "result.json", "--", RINGFOLD, "train", "mlp", "--data", DATA, "--epochs", "100000",
                           "--batch", "192", "--shards", "12"],
                          cwd=tmp_path, env=environment(), timeout=300 * (MINUTES + 2), capture_output=True, text=True)
    result = json.loads((tmp_path / "result.json").read_text()) if (tmp_path / "result.json").exists() else {}
    assert done.returncode == 0 and result["verdict"] == "pass", (result.get("reason"), done.stdout[-4000:], done.stderr[-2000:])
    assert result["digests_equal"] and result["steps_lost"] == 0
    assert result["faults"] >= 10 * MINUTES and result["steps"] > 0, result
    assert all(kind in result["by_kind"] for kind in ("kill", "freeze", "join", "store")), result["by_kind"].keys()
