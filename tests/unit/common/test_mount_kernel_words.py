"""Words that only the kernel can honour reach mount(2)."""

import pytest

from fscommon.config.mount_options import parse_mount_options
from fscommon.errors import ConfigError


def test_security_words_are_kept_in_order() -> None:
    options = parse_mount_options("nosuid,_netdev,nodev,noexec,exec,ro")
    assert options.kernel_words == "nosuid,nodev,noexec,exec"
    assert options.ro


def test_the_field_is_no_option() -> None:
    with pytest.raises(ConfigError):
        parse_mount_options("kernel_words=suid")
