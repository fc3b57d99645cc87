"""Constructs the components of the NATS engine, and passes each the components that it needs."""

from __future__ import annotations

from collections.abc import Callable

from mainspring.clock import Clock
from mainspring.engines.nats import uniqueness
from mainspring.engines.nats.arriving import Arrivals, Inheritance, Receipts
from mainspring.engines.nats.chores import Chores
from mainspring.engines.nats.claiming import Claims, Deciding, Starting
from mainspring.engines.nats.commands import NatsCommands
from mainspring.engines.nats.gates import Gates
from mainspring.engines.nats.hands import Hands, Stops
from mainspring.engines.nats.intake import MessageIntake
from mainspring.engines.nats.journal import NatsJournal
from mainspring.engines.nats.link import Link
from mainspring.engines.nats.naming import Names
from mainspring.engines.nats.projector import Projector
from mainspring.engines.nats.queueing import NatsLanes, Queueing
from mainspring.engines.nats.reading import Backlogs, Reading, WhatWaits
from mainspring.engines.nats.repair import Overlooked, Reaping, Rescuing
from mainspring.engines.nats.scheduling import NatsScheduling
from mainspring.engines.nats.settings import NatsSettings
from mainspring.engines.nats.settings_book import SettingsBook
from mainspring.engines.nats.settling import NatsSettling
from mainspring.engines.nats.streams import Streams
from mainspring.engines.nats.submitting import NatsSubmitting
from mainspring.engines.nats.taking import LaneReader, NatsTaking
from mainspring.engines.nats.workers import Workers
from mainspring.engines.nats.workspace import Workshop
from mainspring.jobs.projection import Projection


class Parts:
    """The components that the verbs of the engine call."""

    def __init__(
        self,
        servers: list[str],
        settings: NatsSettings,
        clock: Clock,
        *,
        make_projection: Callable[[str], Projection],
        wake: Callable[[], None],
    ) -> None:
        self.names = names = Names(settings.prefix)
        self.link = link = Link(servers, settings, names.stream, clock)
        self.streams = streams = Streams(link, names, settings)
        self.workshop = workshop = Workshop(link, names)
        self.lanes = lanes = NatsLanes(names)
        self.hands = hands = Hands()
        self.journal = journal = NatsJournal(link, names)
        self.book = book = SettingsBook(workshop)
        self.gates = gates = Gates(book)
        queueing = Queueing(gates, lanes)
        self.workers = workers = Workers(link, names, settings)
        self.intake = intake = MessageIntake(link, names, wake, streams.forget_consumers)
        self.submitting = submitting = NatsSubmitting(workshop, queueing, journal)
        self.commands = NatsCommands(queueing=queueing, submitting=submitting, journal=journal)
        self.scheduling = NatsScheduling(workshop, submitting, self.commands, journal)
        self.settling = NatsSettling(
            workshop, hands, submitting=submitting, queueing=queueing, gates=gates, journal=journal
        )
        self.rescuing = Rescuing(workshop, workers, queueing=queueing, gates=gates, journal=journal)
        self.chores = Chores(
            workshop,
            streams,
            intake,
            gates=gates,
            queueing=queueing,
            journal=journal,
            wake=wake,
        )
        workshop.on_end = uniqueness.release_later
        self.stops = Stops(workshop, hands)
        deciding = Deciding(
            hands=hands,
            book=book,
            gates=gates,
            queueing=queueing,
            workers=workers,
            rescuing=self.rescuing,
            chores=self.chores,
            journal=journal,
        )
        self.taking = NatsTaking(
            workshop,
            LaneReader(workshop, streams, intake, lanes),
            Claims(workshop, intake, deciding),
            workers=workers,
            book=book,
            queueing=queueing,
            chores=self.chores,
            stops=self.stops,
        )
        self.waiting = WhatWaits(workshop, streams, lanes, book)
        self.overlooked = Overlooked(workshop, streams, lanes, queueing)
        self.backlogs = Backlogs(workshop, streams)
        self.starting = Starting(workshop, hands, book, journal)
        self.projector = Projector(link, names, streams, make_projection)
        self.reading = Reading(workshop, self.projector, gates=gates, book=book)
        self.reaping = Reaping(
            workshop, self.projector, queueing=queueing, rescuing=self.rescuing, workers=workers
        )
        self.receipts = Receipts(workshop, workers)
        self.arrivals = Arrivals(workshop, self.receipts, queueing=queueing, gates=gates)
        self.inheritance = Inheritance(
            workshop, self.receipts, gates=gates, agenda=self.scheduling.agenda, book=book
        )
