"""What a site profile may say. Every key has a default; unknown keys are mistakes."""

from __future__ import annotations

import re
import shlex
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from hvdtrain.errors import UserError, nearest
from hvdtrain.site.rooms import is_slice
from hvdtrain.site.times import minutes

Policy = Literal["preempted", "timeout"]
_DIRECTIVE = re.compile(r"--[A-Za-z][A-Za-z0-9-]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _duration(text: str) -> str:
    minutes(text)
    return text


def _directive(text: str) -> str:
    """`--name=value` or `--name`: what a directive is found by is its name, however the value follows it.

    Raises:
        ValueError: it has a short name, or is none.
    """
    given = text.strip()
    name, *rest = re.split(r"=|\s+", given, maxsplit=1)
    if not _DIRECTIVE.fullmatch(name) or not text.isprintable():
        raise ValueError(
            f'"{text}" is not a directive such as --exclusive; give its long name, such as --constraint=fast'
        )
    if not rest or given[len(name)] == "=":
        return given
    try:
        words = shlex.split(rest[0])
    except ValueError as error:
        raise ValueError(f'"{text}" is not a directive: {error}') from error
    if len(words) > 1 or words[0].startswith("--"):
        raise ValueError(f'"{text}" is more than one: give each directive by itself, a value of several words after =')
    return f"{name}={words[0]}"


#: A time as SLURM writes it, such as 90, 1:30:00, 2-00.
Duration = Annotated[str, AfterValidator(_duration)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Gpu(_Strict):
    """How one GPU type is asked for here, and where it is."""

    slurm: str | None = Field(
        default=None, description="the site's name in --gpus-per-node=NAME:n; empty text asks untyped"
    )
    partition: str | None = Field(default=None, description="partition that has this type")
    constraint: str | None = Field(default=None, description="feature that picks it, where types are not gres names")
    per_node: int | None = Field(default=None, ge=1, description="GPUs of this type on each node")
    nodes: int | None = Field(default=None, ge=1, description="nodes that have it")


class Container(_Strict):
    """How ranks enter a container."""

    kind: Literal["none", "apptainer", "singularity", "charliecloud", "pyxis"] = Field(
        default="none", description="what starts containers"
    )
    image: str | None = Field(default=None, description="file, folder (charliecloud), or registry address")
    python: str = Field(default="python", description="the interpreter inside the image, which has hvdtrain installed")
    mounts: list[str] = Field(
        default=[], description="paths or SRC:DST beside the study, the job and the current folder"
    )
    options: list[str] = Field(default=[], description="further words for apptainer exec, ch-run, or srun with pyxis")


class Requeue(_Strict):
    """What happens when the cluster ends a job early."""

    on: list[Policy] = Field(
        default=["preempted", "timeout"], description="which ends start the job again by themselves"
    )
    signal_seconds: int = Field(
        default=120, ge=5, description="how long before the end ranks are told to write a checkpoint"
    )
    retries: int = Field(
        default=1,
        ge=0,
        description="further starts after a rank or node died; preemption costs none; 0 unless given where `on` is empty",
    )

    @model_validator(mode="before")
    @classmethod
    def _none_unasked(cls, values: Any) -> Any:
        # Who wants no job started again by itself need not say so twice.
        return {"retries": 0, **values} if isinstance(values, dict) and values.get("on") == [] else values


class Limits(_Strict):
    """The most that may be asked for; empty: what SLURM itself refuses."""

    array_size: int | None = Field(default=None, ge=1, description="cells in one job array (MaxArraySize)")
    jobs: int | None = Field(default=None, ge=1, description="jobs of one user in the queue (MaxSubmitJobs)")
    gpus: int | None = Field(default=None, ge=1, description="GPUs of one job")
    time: Duration | None = Field(default=None, description="longest time limit of a cell, as SLURM writes it")


class Site(_Strict):
    """A cluster as submission needs to know it."""

    name: str = Field(default="", description="for messages only")
    partition: str | None = Field(default=None, description="where jobs queue")
    account: str | None = Field(default=None, description="who pays")
    qos: str | None = Field(default=None, description="quality of service")
    reservation: str | None = Field(default=None, description="reservation to run in")
    time: Duration | None = Field(default=None, description="time limit of a cell, as SLURM writes it")
    gpus: dict[str, Gpu] = Field(default={}, description="GPU types by the name that you use")
    gpus_per_node: int | None = Field(default=None, ge=1, description="GPUs on each node, where types do not say")
    ranks_per_node: int | None = Field(default=None, ge=1, description="ranks on each node of a cluster without GPUs")
    nodes: int | None = Field(default=None, ge=1, description="nodes that one job may have")
    cpus_per_task: int | None = Field(default=None, ge=1, description="CPU cores for each rank")
    cpu_bind: str | None = Field(default=None, description="srun --cpu-bind, such as cores, none")
    memory: Literal["node", "cpu", "gpu", "none"] = Field(
        default="node", description="what --mem counts; none: never ask"
    )
    mem: str | None = Field(default=None, description="how much of it, such as 64G")
    modules: list[str] = Field(default=[], description="for module load, in this order")
    setup: list[str] = Field(default=[], description="shell lines before anything else")
    environment: dict[str, str] = Field(default={}, description="variables of every job")
    interface: str | None = Field(
        default=None, description="network interface: HOROVOD_GLOO_IFACE and NCCL_SOCKET_IFNAME"
    )
    nccl: dict[str, str] = Field(default={}, description="NCCL options; DEBUG = 'INFO' is NCCL_DEBUG=INFO")
    container: Container = Container()
    launcher: Literal["auto", "gloo", "pmix"] = Field(
        default="auto", description="how ranks find each other under srun"
    )
    pmix: str = Field(default="pmix", description="the name of SLURM's PMIx plugin in srun --mpi=list")
    requeue: Requeue = Requeue()
    skip: list[str] = Field(default=[], description="directives to leave out, such as gpus-per-node, mem")
    directives: list[str] = Field(default=[], description="further directives, such as --exclusive, --mail-type=FAIL")
    limits: Limits = Limits()

    @field_validator("environment", "nccl")
    @classmethod
    def _variables(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if not _VARIABLE.fullmatch(name):
                raise ValueError(f'"{name}" is not the name of a shell variable')
        return value

    @field_validator("directives")
    @classmethod
    def _directives(cls, value: list[str]) -> list[str]:
        return [_directive(text) for text in value]

    @field_validator("skip")
    @classmethod
    def _skip(cls, value: list[str]) -> list[str]:
        return [text.lstrip("-") for text in value]

    def gpu(self, name: str) -> Gpu:
        """The GPU type that the user calls `name`, as `gpu_key` finds it."""
        return self.gpus[self.gpu_key(name)]

    def gpu_key(self, name: str) -> str:
        """What the profile calls the GPU type that the user calls `name`.

        A word that the site's own name for it contains will do, unless it is a slice.

        Raises:
            UserError: the site has no such type; names the nearest.
        """
        if name in self.gpus:
            return name
        for key, entry in self.gpus.items():
            if entry.slurm == name or key.lower() == name.lower():
                return key
        whole = {key: text for key, entry in self.gpus.items() if not is_slice(text := entry.slurm or key)}
        parts = [key for key, text in whole.items() if name.lower() in re.split(r"[^a-z0-9]+", text.lower())]
        if len(parts) == 1:
            return parts[0]
        legal = ", ".join(self.gpus) or "none: the site profile names no GPU types"
        several = f" ({', '.join(parts)} are all called so: give the whole name)" if parts else ""
        raise UserError(f'--gpu-type "{name}": the types here are {legal}{several}{nearest(name.lower(), self.gpus)}')
