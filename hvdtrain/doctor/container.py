"""Check of what starts containers: compute nodes must have it; a login node need not."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from hvdtrain.doctor.check import REGISTRY, Context, Finding, failed, ok, skipped, warning
from hvdtrain.errors import UserError


@REGISTRY.add("node", "container")
def container(context: Context) -> Finding:
    """Is what starts the site's containers here, and the image?"""
    from hvdtrain.site import commands, files

    try:
        wanted = files.combine(files.layers(Path.cwd(), None)).site.container
    except UserError:
        return skipped("the site profile is not valid")
    if wanted.kind == "none":
        return skipped("the site profile names no container")
    why = "ranks of a job in a container would not start"
    tell = failed if "SLURM_JOB_ID" in os.environ else warning
    if wanted.kind == "pyxis":
        # A plugin of srun. Its images are in a registry, or files of the compute nodes.
        try:
            told = commands.call(["srun", "--help"])
        except commands.SlurmError as error:
            return tell(str(error), why, "ask the site where SLURM is")
        if "--container-image" in told:
            return ok("srun takes --container-image: pyxis is here")
        return tell("srun --help does not list --container-image", why, "ask the site for pyxis, or take another kind")
    program = {"charliecloud": "ch-run"}.get(wanted.kind, wanted.kind)
    if shutil.which(program) is None:
        return tell(
            f"{program} is not on the PATH",
            why,
            "load its module: modules = [...] in the site profile (where only compute nodes have it: hvdtrain doctor --on-nodes 2)",
        )
    if wanted.image is None:
        return skipped(f"{program} is here; the site profile names no image (--container IMAGE)")
    # An address such as docker://... is fetched by the program.
    if "://" not in wanted.image and not Path(wanted.image).exists():
        return tell(
            f"there is no image {wanted.image}", why, "correct image in [container] of the site profile, or --container"
        )
    return ok(f"{program} and {wanted.image} are here")
