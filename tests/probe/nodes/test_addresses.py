"""Where the ranks of a hostfile meet."""

from ipaddress import ip_address

from zerowiz.probe.nodes import find_master_address, parse_ssh_hostname


def test_an_address_stays_itself() -> None:
    assert "192.0.2.7" == find_master_address(["192.0.2.7", "192.0.2.8"])


def test_a_name_that_nobody_knows_is_left_to_deepspeed() -> None:
    assert find_master_address(["no-such-host.invalid", "192.0.2.8"]) is None


def test_loopback_is_never_told_to_another_node() -> None:
    # None where this host has no route to the other one.
    found = find_master_address(["localhost", "192.0.2.8"])
    assert found is None or not ip_address(found).is_loopback
    assert find_master_address(["localhost", "127.0.0.2"]) is None
    assert find_master_address(["localhost"]) is None


def test_an_alias_is_followed() -> None:
    assert "gpu1.example" == parse_ssh_hostname("user me\nhostname gpu1.example\nport 22\n")
    assert parse_ssh_hostname("") is None
