"""`trajectory`, under the name that it had before rollouts could be stored; see `niels_gpt.rollouts.turns`."""

from __future__ import annotations

from niels_gpt.rollouts.turns import Trajectory as Trajectory
from niels_gpt.rollouts.turns import trajectory as trajectory
