"""The names of OpenTelemetry's semantic conventions for messaging (version 1.44) that Mainspring uses.

A job is a message, and its queue is the destination. Attributes that only Mainspring has begin with
`messaging.mainspring`, as the conventions ask for.
"""

from __future__ import annotations

SYSTEM = "messaging.system"
OPERATION_NAME = "messaging.operation.name"
OPERATION_TYPE = "messaging.operation.type"
DESTINATION = "messaging.destination.name"
MESSAGE_ID = "messaging.message.id"
MESSAGE_COUNT = "messaging.batch.message_count"
ERROR_TYPE = "error.type"

JOB_TYPE = "messaging.mainspring.job.type"
JOB_STATUS = "messaging.mainspring.job.status"
ATTEMPT = "messaging.mainspring.attempt"
OUTCOME = "messaging.mainspring.outcome"
SCHEDULE = "messaging.mainspring.schedule"
DEAD_LETTER = "messaging.mainspring.dead_letter"

EXCEPTION = "exception"
EXCEPTION_TYPE = "exception.type"
EXCEPTION_MESSAGE = "exception.message"
EXCEPTION_STACKTRACE = "exception.stacktrace"

SENT_MESSAGES = "messaging.client.sent.messages"
CONSUMED_MESSAGES = "messaging.client.consumed.messages"
OPERATION_DURATION = "messaging.client.operation.duration"
PROCESS_DURATION = "messaging.process.duration"

DURATION_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""The bounds of both histograms, in seconds."""
