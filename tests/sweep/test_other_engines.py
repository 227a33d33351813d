"""The files for Kubernetes and SkyPilot. They are checked in form; no cluster runs them."""

import shlex

import kubernetes_validate
import pytest
import yaml
from helpers import ROOT

from transformer_pl.runtime.signals import JOB_GRACE_S
from transformer_pl.sweep.sweep_options import read_options

FOLDER = ROOT / "transformer_pl" / "sweep"


def starts_a_sweep_in(folders, words):
    """Whether these words are a sweep command on a shipped file, with one of the folders for its runs."""
    assert words[:3] == ["python", "-m", "transformer_pl.sweep"]
    options = read_options(words[3:])
    return (ROOT / options.file).exists() and str(options.runs) in folders


def test_the_kubernetes_job_is_valid_and_its_pods_share_the_claimed_volume():
    job, claim = yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text())
    version = kubernetes_validate.latest_version()
    for content in (job, claim):
        kubernetes_validate.validate(content, version, strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job | {"spec": job["spec"] | {"paralelism": 4}}, version, strict=True)
    pod = job["spec"]["template"]["spec"]
    ((container,), (volume,)) = pod["containers"], pod["volumes"]
    assert starts_a_sweep_in([one["mountPath"] for one in container["volumeMounts"]], container["command"])
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"] and pod["restartPolicy"] == "OnFailure"
    assert pod["terminationGracePeriodSeconds"] >= JOB_GRACE_S and "completions" not in job["spec"]


def test_the_skypilot_task_runs_the_sweep_over_its_volume():
    """SkyPilot itself is too large to be installed for its schema."""
    task = yaml.safe_load((FOLDER / "skypilot.yaml").read_text())
    assert task.keys() == {"name", "num_nodes", "workdir", "resources", "volumes", "setup", "run"}
    assert starts_a_sweep_in(task["volumes"], shlex.split(task["run"].removeprefix("exec ")))
