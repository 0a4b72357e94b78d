"""Where a draft goes, when, and who must agree: the profile's `publish` part."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from profiles.part import Fraction, Part, Positive, Seconds

RepoId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}$")]
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class Hub(Part):
    """A repository of a Hugging Face hub; the endpoint is `HF_ENDPOINT`, as everywhere."""

    repo: RepoId
    """`OWNER/NAME` of the model repository; made if it is missing."""
    private: bool = True
    """A repository that is made is private; one that exists keeps what it is."""
    via: Literal["branch", "pull_request"] = "branch"
    """`branch`: `main` moves last, by us. `pull_request`: opened and verified; people merge it."""
    token_env: VariableName = "HF_TOKEN"
    """Environment variable that holds the token; the token itself stands nowhere."""
    token_secret: str | None = None
    """Name of a Prefect Secret block that holds the token; goes before the variable."""
    attempts: Positive = 6
    """Tries of one request that failed by transport, 412, 429 or 5xx, with back-off between them."""
    timeout_s: Seconds = 3600.0
    """Longest time of the whole publication."""
    max_file_bytes: Positive = 50 * 1024**3
    """Largest file that may go out."""
    max_files: Positive = 200
    """Most files of one version."""


class Approval(Part):
    """People's word before a draft becomes champion."""

    required: bool = False
    """Wait for a person, who says yes or no in the Prefect UI or with `retrain-dspark promote`."""
    timeout_hours: Annotated[float, Field(gt=0, le=24 * 14)] = 24.0
    """After this time without a word the draft is held."""


class Card(Part):
    """What the model card says beyond what was measured. Empty values are left out, never guessed."""

    base_model: str | None = None
    """Hub id of the target, `OWNER/NAME`; empty takes the target's name."""
    language: tuple[str, ...] = ()
    """Language codes, e.g. `en`."""
    tags: tuple[str, ...] = ()
    """Further tags."""
    data: str = ""
    """Where the prompts came from and under which terms, in a sentence or two."""
    limits: str = ""
    """What the draft must not be used for, or is known to do badly."""
    citation: str = ""
    """BibTeX of the work to cite beside DSpark's."""


class Publish(Part):
    """Where a draft goes and when."""

    kind: Literal["local", "hub"] = "local"
    """`local`: a versioned folder under the run root. `hub`: that, and the same version in `publish.hub`."""
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,95}$")] = "draft"
    """Name of the published draft and of its registered model; versions are folders below it."""
    folder: str | None = None
    """Folder of published drafts; empty takes `published/` under the run root."""
    hub: Hub | None = None
    """The hub's repository; needed where `kind` is `hub`."""
    incumbent: str | None = None
    """What to beat instead of the champion: a local folder, or `OWNER/NAME[@REVISION]` of a hub."""
    margin: Annotated[float, Field(ge=0)] = 0.02
    """How far the lower bound of the macro acceptance length must be above 1.0, or above the incumbent."""
    max_domain_drop: Fraction = 0.05
    """Largest fall of a domain's acceptance length against the incumbent's, as a share; beyond it, hold."""
    approval: Approval = Approval()
    """People's word."""
    card: Card = Card()
    """What the card says beyond what was measured."""
    license: str = "apache-2.0"
    """License identifier of the published draft."""
    training_rows: bool = False
    """Permission to publish rows of the training data; without it a folder that holds some is refused."""

    @model_validator(mode="after")
    def _hub_is_named(self) -> Publish:
        if self.kind == "hub" and self.hub is None:
            raise ValueError("publish.kind is hub, but publish.hub.repo is not set; write OWNER/NAME there")
        return self
