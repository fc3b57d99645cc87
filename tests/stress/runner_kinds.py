"""Every kind of runner, as a parameter of tests."""

import pytest

from mainspring.runners import TaskRunner, ThreadPool


def the_pool(pool: ThreadPool) -> TaskRunner:
    return pool


def a_sequence(pool: ThreadPool) -> TaskRunner:
    return pool.sequenced()


def some_in_parallel(pool: ThreadPool) -> TaskRunner:
    return pool.parallel(limit=2)


def a_thread(pool: ThreadPool) -> TaskRunner:
    return pool.single_thread()


def a_loop(pool: ThreadPool) -> TaskRunner:
    return pool.asyncio()


kinds = pytest.mark.parametrize("make", [the_pool, a_sequence, some_in_parallel, a_thread, a_loop])
