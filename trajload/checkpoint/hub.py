"""Upload of an export to a model hub, where huggingface_hub is installed: weights, config.json and what was given beside them."""

from __future__ import annotations

from pathlib import Path

from trajload.arguments import explains_calls
from trajload.errors import CheckpointError, ConfigError, MissingDependencyError, described
from trajload.types import PathLikeStr

__all__ = ["upload"]


@explains_calls
def upload(
    folder: PathLikeStr,
    repo: str,
    *,
    private: bool = True,
    revision: str | None = None,
    message: str | None = None,
    endpoint: str | None = None,
) -> str:
    """Upload the folder of an `export` as one commit of a model repository, and return the address of that commit.

    Who uploads is what `hf auth login` or HF_TOKEN says; no token passes through here.

    Args:
        folder: From `export`.
        repo: 'owner/name'; made if it does not exist.
        private: Of a repository that is made.
        revision: Branch; None for the main one.
        message: Of the commit.
        endpoint: Of another hub than the default one.

    Raises:
        MissingDependencyError: huggingface_hub is not installed.
        ConfigError: The folder is no export, or `repo` no name.
        CheckpointError: The hub refused, or could not be reached; the folder stands as it was.
    """
    path = Path(folder)
    if not (path / "config.json").is_file() or not any(path.glob("model*.safetensors")):
        raise ConfigError(
            f"folder {str(path)!r} is no export: expected config.json and model.safetensors. Export first."
        )
    try:
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HFValidationError
    except ImportError as err:
        raise MissingDependencyError("uploading needs huggingface_hub; run: pip install huggingface_hub") from err
    api = HfApi(endpoint=endpoint, library_name="trajload")
    try:
        made = api.create_repo(repo, private=private, exist_ok=True, repo_type="model")
        done = api.upload_folder(
            repo_id=made.repo_id,
            folder_path=path,
            revision=revision,
            commit_message=message or "Upload weights exported by trajload",
        )
    except HFValidationError as err:
        raise ConfigError(f"repo={repo!r} is no name of a repository: expected 'owner/name'. {err}") from err
    except Exception as err:  # of whatever library carries the requests
        raise CheckpointError(
            f"upload of {str(path)!r} to {repo!r} failed: {described(err)} The folder is whole, and need not be exported anew; check "
            f"the network and 'hf auth whoami', then call trajload.checkpoint.upload({str(path)!r}, {repo!r})."
        ) from err
    return str(done.commit_url)
