"""Contact sheets: what a batch, or a stretch of an episode, looks like, as one PNG."""

from trajload.view.episode import episode_sheet
from trajload.view.window import contact_sheet

__all__ = ["contact_sheet", "episode_sheet"]
