"""Review, promote and compare in a real Chromium: labels by keyboard, corrected rates, the gate."""

import json
import shutil

import httpx
import pytest
from browser import page_at, violations
from server_parts import serving
from viewer_parts import HOSTILE, hostile_agent, run_suite, shop_agent, shop_suite

from proctor.errors import ProctorError
from proctor.results.gate import judge_runs
from proctor.runs import audit
from proctor.runs.annotations import label, labels_of
from proctor.runs.run import Run
from proctor.server.app import Service
from proctor.server.auth import check_host
from proctor.server.pages.review import _below_here, queue_of
from proctor.server.pages.runs import address_name
from proctor.stats.gate import GateRule
