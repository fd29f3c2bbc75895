"""The CPU time of a request is limited in the main thread; where it cannot be limited, a site answers nothing."""

import signal
import threading

import pytest

from fnlkit.sites.site.time_limit import TooLong, cpu_limit


def test_a_thread_cannot_limit_its_time_and_computes_nothing():
    reached, errors = [], []

    def enter():
        try:
            with cpu_limit(60, "audit"):
                reached.append(True)
        except TooLong as error:
            errors.append(str(error))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert not reached and len(errors) == 1 and errors[0].startswith("audit: the CPU time cannot be limited here")


def test_a_system_without_the_timer_computes_nothing(monkeypatch):
    monkeypatch.delattr(signal, "setitimer")
    with pytest.raises(TooLong, match="Linux or macOS"), cpu_limit(60, "audit"):
        pytest.fail("computed")


def test_the_time_of_all_threads_counts():
    """The main thread waits, and a thread that it started computes."""
    ended = threading.Event()

    def compute():
        while not ended.is_set():
            pass

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        with pytest.raises(TooLong, match="more than the 0.2 s"), cpu_limit(0.2, "audit"):
            while thread.is_alive():  # the error is raised between two waits: another thread may have received the signal
                thread.join(0.05)
    finally:
        ended.set()
        thread.join()


def test_the_former_handler_and_timer_return():
    before = signal.getsignal(signal.SIGVTALRM)
    with cpu_limit(60, "audit") as check:
        assert signal.getitimer(signal.ITIMER_VIRTUAL)[0] > 0
        check()
    assert signal.getsignal(signal.SIGVTALRM) == before and signal.getitimer(signal.ITIMER_VIRTUAL) == (0, 0)
