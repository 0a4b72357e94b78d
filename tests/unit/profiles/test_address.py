"""Addresses of the store in a profile: IPv6, wildcards, and loopback where other hosts must reach it."""

from __future__ import annotations

from typing import Any

import pytest

from profiles.address import is_loopback, join_address
from profiles.load import ProfileProblem, load_profile
from profiles.store import Store

SEVERAL = {"roles": {"colocated": False}}
ATTACH = {"kind": "attach", "url": "http://192.0.2.7:8000"}


def refusal(**changes: Any) -> str:
    with pytest.raises(ProfileProblem) as caught:
        load_profile("laptop", changes)
    return caught.value.what


@pytest.mark.parametrize(
    "master", ["[2001:db8::5]:50051", "[::1]:1", "192.0.2.7:65535", "data-1.example:50051", "localhost:50051"]
)
def test_good_masters(master: str) -> None:
    assert Store(master=master).master == master


@pytest.mark.parametrize(
    ("master", "words"),
    [
        ("2001:db8::5", "write IPv6 in brackets, [2001:db8::5]:PORT"),
        ("2001:db8::5:50051", "write IPv6 in brackets, [2001:db8::5]:50051"),
        ("2001:db8::5:5005", "[2001:db8::5:5005]:PORT or [2001:db8::5]:5005"),
        ("a:b:1", "[IPv6]:PORT"),
        ("[2001:db8::5]", "[2001:db8::5]:PORT"),
        ("[192.0.2.7]:50051", "[IPv6]:PORT"),
        ("192.0.2.7", "HOST:PORT"),
        ("192.0.2.7:0", "port from 1 to 65535"),
        ("192.0.2.7:70000", "port from 1 to 65535"),
        (":50051", "HOST:PORT"),
        ("0.0.0.0:50051", "a wildcard"),
        ("[::]:50051", "a wildcard"),
    ],
)
def test_bad_masters_are_told_the_right_spelling(master: str, words: str) -> None:
    what = refusal(serve=ATTACH, store={"master": master})
    assert words in what and "store.master is '" in what


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "[::]", "*", ""])
def test_a_wildcard_is_nobodys_own_address(host: str) -> None:
    assert "store.host" in (what := refusal(store={"host": host})) and "a wildcard" in what


def test_a_host_has_no_port_and_may_have_brackets() -> None:
    assert "write the host alone" in refusal(store={"host": "192.0.2.7:50051"})
    assert Store(host="[2001:db8::5]").host == Store(host="2001:db8::5").host == "2001:db8::5"


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.0.1.1", "::1", "[::1]"])
def test_loopback_is_refused_where_others_must_reach_it(host: str) -> None:
    load_profile("laptop", {"store": {"host": host}})
    assert "which each host takes for itself" in refusal(hardware=SEVERAL, store={"host": host})
    port = join_address(host.strip("[]"), 50051)
    theirs = {"host": "192.0.2.9", "master": port}
    assert "store.master is on" in refusal(hardware=SEVERAL, serve=ATTACH, store=theirs)


def test_addresses_that_others_reach_pass() -> None:
    for host in ("192.0.2.7", "2001:db8::5", "data-1.example"):
        store = {"host": host, "master": join_address(host, 50051)}
        load_profile("laptop", {"hardware": SEVERAL, "serve": ATTACH, "store": store})
        load_profile("laptop", {"hardware": SEVERAL, "store": {"host": host}})
        assert not is_loopback(host)


def test_an_interface_gives_the_own_address_of_an_attached_run() -> None:
    store = {"interface": "eth1", "master": "192.0.2.7:50051"}
    assert load_profile("laptop", {"hardware": SEVERAL, "serve": ATTACH, "store": store})
