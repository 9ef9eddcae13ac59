"""What happens when an expectation does not hold: a command is run, or a webhook called, with the failures as JSON.

Both are also actions of Great Expectations, for the `actions` of a checkpoint:

```json
{"type": "popstream_command", "name": "page", "command": "page-on-call --team queues"}
{"type": "popstream_webhook", "name": "chat", "url": "https://chat.example/hook", "notify_on": "all"}
```
"""

from __future__ import annotations

import json
import shlex
import subprocess
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any, Final, Literal

import structlog
from great_expectations.checkpoint.actions import ActionContext, ValidationAction, should_notify
from great_expectations.checkpoint.checkpoint import CheckpointResult

from popstream.wire.base_errors import Invalid

if TYPE_CHECKING:
    from expectations.report import QualityReport

__all__ = ["CommandAction", "WebhookAction", "call_webhook", "described_failures", "require_webhook", "run_command"]

_COMMAND_TIMEOUT_S: Final = 60
_WEBHOOK_TIMEOUT_S: Final = 10
_ROWS_SHOWN: Final = 3
_TEXT_MAX: Final = 300

_log = structlog.get_logger(__name__)


class CommandAction(ValidationAction):
    """Runs a command with the failures as JSON on standard input."""

    type: Literal["popstream_command"] = "popstream_command"
    command: str
    notify_on: Literal["all", "success", "failure"] = "failure"

    def run(self, checkpoint_result: CheckpointResult, action_context: ActionContext | None = None) -> dict[str, Any]:  # noqa: ARG002
        """Run the command, if it is to hear of this result."""
        problem = None
        if should_notify(bool(checkpoint_result.success), self.notify_on):
            problem = run_command(self.command, _document(checkpoint_result))
        return _noted(self.name, problem)


class WebhookAction(ValidationAction):
    """Posts the failures as JSON to a URL."""

    type: Literal["popstream_webhook"] = "popstream_webhook"
    url: str
    notify_on: Literal["all", "success", "failure"] = "failure"

    def run(self, checkpoint_result: CheckpointResult, action_context: ActionContext | None = None) -> dict[str, Any]:  # noqa: ARG002
        """Call the webhook, if it is to hear of this result."""
        problem = None
        if should_notify(bool(checkpoint_result.success), self.notify_on):
            problem = call_webhook(self.url, _document(checkpoint_result))
        return _noted(self.name, problem)


def run_command(command: str, document: dict[str, Any]) -> str | None:
    """Run a command, without a shell, with a document as JSON on standard input; return what went wrong.

    >>> run_command("false", {})
    'the command `false` ended with exit code 1'
    """
    try:
        done = subprocess.run(  # noqa: S603 - the operator's own command
            shlex.split(command),
            input=json.dumps(document, default=str).encode(),
            stdout=subprocess.DEVNULL,
            timeout=_COMMAND_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"the command `{command}` took more than {_COMMAND_TIMEOUT_S} s, and was ended"
    except (OSError, ValueError) as error:
        return f"the command `{command}` cannot be run: {error}"
    return f"the command `{command}` ended with exit code {done.returncode}" if done.returncode else None


def require_webhook(url: str) -> None:
    """Refuse what is not a URL for a webhook.

    >>> require_webhook("file:///etc/passwd")
    Traceback (most recent call last):
    ...
    popstream.wire.base_errors.Invalid: a webhook must be an http or https URL, not 'file:///etc/passwd'
    """
    if not url.startswith(("http://", "https://")):
        message = f"a webhook must be an http or https URL, not {url!r}"
        raise Invalid(message)


def call_webhook(url: str, document: dict[str, Any]) -> str | None:
    """Post a document as JSON to a URL; return what went wrong, without the path of the URL, which may be a secret."""
    host = url.split("/")[2] if url.count("/") > 1 else url
    try:
        require_webhook(url)
        request = urllib.request.Request(  # noqa: S310 - checked above
            url,
            data=json.dumps(document, default=str).encode(),
            headers={"Content-Type": "application/json", "User-Agent": "popstream"},
            method="POST",
        )
        with urllib.request.urlopen(request, timeout=_WEBHOOK_TIMEOUT_S):  # noqa: S310
            return None
    except Invalid as error:
        return error.message
    except urllib.error.HTTPError as error:
        return f"the webhook at {host} answered {error.code}"
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        return f"the webhook at {host} cannot be reached: {str(reason)[:_TEXT_MAX]}"


def described_failures(report: QualityReport) -> dict[str, Any]:
    """Return what a command or a webhook is told about a run."""
    return {
        "run_at": report.run_at,
        "scope": report.scope.name,
        "versions": dict(report.versions),
        "expectations_failed": report.expectations_failed,
        "failures": [
            {
                "table": outcome.suite,
                "expectation": outcome.expectation,
                "description": outcome.description,
                "unexpected_count": outcome.unexpected_count,
                "rows": list(outcome.sample[:_ROWS_SHOWN]),
                "error": outcome.error,
            }
            for outcome in report.failures
        ],
    }


def _document(result: CheckpointResult) -> dict[str, Any]:
    failures = [
        {
            "table": validation.suite_name,
            "expectation": "" if each.expectation_config is None else each.expectation_config.type,
            "unexpected_count": each.result.get("observed_value", -1),
            "rows": each.result.get("details", {}).get("unexpected_rows", [])[:_ROWS_SHOWN],
        }
        for validation in result.run_results.values()
        for each in validation.results
        if not each.success
    ]
    return {"run_at": result.run_id.run_time, "expectations_failed": len(failures), "failures": failures}


def _noted(name: str, problem: str | None) -> dict[str, Any]:
    if problem is not None:
        _log.warning("action_failed", action=name, problem=problem)
    return {"problem": problem}
