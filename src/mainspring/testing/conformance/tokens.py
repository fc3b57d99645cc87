"""Conformance tests of engines: the tokens of HTTP servers."""

from __future__ import annotations

from msgspec.structs import replace

from mainspring.jobs.commands import NoteTokenUses, PutToken, RevokeToken
from mainspring.security.permissions import Permissions, Scope
from mainspring.security.tokens import KEPT_AFTER_END, TokenRecord, make_token
from mainspring.testing.conformance.base import EngineSuite
from mainspring.testing.conformance.bench import Bench

DAY = 86_400 * 1_000_000


def token(name: str, *, created: int = 1, expires: int | None = None) -> TokenRecord:
    """Return the record of a new token with this name. It is not stored."""
    permissions = Permissions(
        scopes=frozenset({Scope.SUBMIT, Scope.READ}), types=frozenset({"a", "b"}), queues=frozenset({"mail"})
    )
    return make_token(name, permissions, created=created, expires=expires)[1]


class TokenTests(EngineSuite):
    """Tests of the engine's `tokens`, and of `PutToken`, `RevokeToken` and `NoteTokenUses`."""

    def test_tokens_are_stored_and_listed_by_name(self, bench: Bench, other: Bench) -> None:
        assert bench.engine.tokens() == []
        shop, admin = token("shop", expires=bench.engine.now() + DAY), token("admin")
        assert bench.arrange(PutToken(shop))
        assert other.arrange(PutToken(admin))
        assert bench.engine.tokens() == other.engine.tokens() == [admin, shop]

    def test_a_token_is_never_replaced(self, bench: Bench) -> None:
        shop = token("shop")
        assert bench.arrange(PutToken(shop))
        assert not bench.arrange(PutToken(replace(shop, scopes=("admin",))))
        assert bench.engine.tokens() == [shop]

    def test_a_token_is_revoked_once_and_for_ever(self, bench: Bench, other: Bench) -> None:
        shop, mail = token("shop"), token("mail")
        assert bench.arrange(PutToken(shop))
        assert bench.arrange(PutToken(mail))
        at = bench.engine.now()
        assert other.arrange(RevokeToken(shop.id, at))
        assert not bench.arrange(RevokeToken(shop.id, at + 1))
        assert not bench.arrange(RevokeToken("unknown", at))
        assert not bench.arrange(PutToken(shop))
        assert bench.engine.tokens() == other.engine.tokens() == [mail, replace(shop, revoked=at)]

    def test_the_last_use_is_stored_and_never_goes_back(self, bench: Bench, other: Bench) -> None:
        shop, mail = token("shop"), token("mail")
        for each in (shop, mail):
            assert bench.arrange(PutToken(each))
        assert bench.arrange(NoteTokenUses({shop.id: 500, "unknown": 600}))
        assert not other.arrange(NoteTokenUses({shop.id: 400}))
        assert other.arrange(NoteTokenUses({shop.id: 300, mail.id: 700}))
        assert [each.last_used for each in bench.engine.tokens()] == [700, 500]

    def test_a_revoked_token_keeps_its_last_use(self, bench: Bench) -> None:
        shop = token("shop")
        assert bench.arrange(PutToken(shop))
        assert bench.arrange(NoteTokenUses({shop.id: 500}))
        assert bench.arrange(RevokeToken(shop.id, 900))
        assert bench.engine.tokens() == [replace(shop, last_used=500, revoked=900)]

    def test_tokens_that_ended_long_ago_are_deleted_with_the_next_token(self, bench: Bench) -> None:
        now = bench.engine.now()
        old = token("old", expires=now - KEPT_AFTER_END - DAY)
        recent = token("recent", expires=now - KEPT_AFTER_END + DAY)
        endless = token("endless")
        for each in (endless, old, recent):
            assert bench.arrange(PutToken(each))
        assert bench.arrange(PutToken(token("new")))
        assert [each.name for each in bench.engine.tokens()] == ["endless", "new", "recent"]

    def test_tokens_and_other_settings_leave_each_other_alone(self, bench: Bench) -> None:
        shop = token("shop")
        bench.pause("mail")
        bench.limit("few", 3)
        assert bench.arrange(PutToken(shop))
        assert bench.engine.paused_queues() == ("mail",)
        bench.resume("mail")
        assert [limit.family for limit in bench.engine.limits()] == ["few"]
        assert bench.engine.tokens() == [shop]

    def test_a_process_knows_that_it_has_changed_tokens(self, bench: Bench) -> None:
        shop = token("shop")
        before = bench.engine.token_changes
        assert bench.arrange(PutToken(shop))
        stored = bench.engine.token_changes
        assert bench.arrange(RevokeToken(shop.id, 900))
        assert before < stored < bench.engine.token_changes

    def test_no_worker_is_woken_for_a_token(self, bench: Bench) -> None:
        before = bench.wakes
        assert bench.arrange(PutToken(token("shop")))
        assert bench.wakes == before
