"""Gate: identifies the sender of a request. One for all ports of a process, as its rates are."""

from __future__ import annotations

import hashlib
import hmac
import importlib
import weakref
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tpy.clock import Clock, SystemClock
from tpy.errors import InvalidArgument, PermissionDenied, TooManyRequests, Unauthenticated
from tpy.frontends.access.config import AuthConfig, Limits, read_auth_config
from tpy.frontends.access.core.policy import Allowance, Role, RoleGrant, roles_for
from tpy.frontends.access.options import AuthOptions
from tpy.frontends.access.tokens import JwtVerifier, ValidToken, issuer_of
from tpy.limits import ACCESS_SUBJECTS_MAX, ACCESS_TOKEN_CHARACTERS_MAX, ACCESS_TOKENS_REMEMBERED_MAX
from tpy.messages import InferenceRequest, InferenceResponse
from tpy.services import RequestHandle, ResolvedModel, ResponseSink
from tpy.units import NS_PER_S

if TYPE_CHECKING:
    from tpy.frontends.access.tenancy import Tenancy


class Caller:
    """The sender of a request. `grant` has his roles, `tenant` is whose requests he sends: "" for nobody's, which are refused,
    None where there are no tenants."""

    __slots__ = ("allowance", "expires_ms", "grant", "name", "tenant")

    def __init__(self, name: str, grant: RoleGrant, allowance: Allowance | None = None, expires_ms: int | None = None) -> None:
        self.name = name
        self.grant = grant
        self.allowance = allowance
        self.expires_ms = expires_ms
        self.tenant: str | None = None

    def require(self, roles: Collection[Role], model: str | None) -> None:
        """Raise PermissionDenied unless he has one of the roles for the model, or Unauthenticated if he has not said who
        he is."""
        if not self.grant.allows(roles, model):
            wanted = " or ".join(sorted(f"'{role.value}'" for role in roles))
            where = "the whole server" if model is None else "this model"
            if self.name:
                raise PermissionDenied(f"'{self.name}' has no role {wanted} for {where}")
            raise Unauthenticated(f"expected an API key or a token with the role {wanted} for {where}")

    def authorize(self, category: str, model: str | None, *, changes: bool) -> None:
        """Raise PermissionDenied or Unauthenticated unless he may make a call of this category (see `roles_for`); `model` None or
        "": the call is about none. Whether the server lives and is ready everybody may know, as probes have no credentials."""
        if category == "health" and not model:
            return
        roles = roles_for(category, changes=changes)
        if category == "shared-memory" or (category in ("", "metadata") and not model):
            self.require_role(roles)
        else:
            self.require(roles, model or None)

    def require_role(self, roles: Collection[Role]) -> None:
        """The same for a call that is about no model: any pattern will do."""
        if self.grant.roles.isdisjoint(roles):
            self.require(roles, None)

    def submit(self, model: ResolvedModel, request: InferenceRequest, sink: ResponseSink, now_ns: int) -> RequestHandle:
        """Submit a request within his rate and concurrency. Raises TooManyRequests beyond them, PermissionDenied without a
        tenant where there are some."""
        if self.tenant is not None:
            if not self.tenant:
                raise PermissionDenied("the request belongs to no known tenant (--tenants-file)")
            request = msgspec.structs.replace(request, tenant=self.tenant)
        allowance = self.allowance
        if allowance is None:
            return model.submit(request, sink)
        wait_ns = allowance.begin(now_ns)
        if wait_ns is not None:
            what = "requests at the same time" if wait_ns == 0 else "requests in this time"
            raise TooManyRequests(f"'{self.name}' has too many {what}, try again later", wait_s=max(1, -(-wait_ns // NS_PER_S)))
        counted = _Counted(sink, allowance)
        try:
            handle = model.submit(request, counted)
        except BaseException:
            counted.end()
            raise
        counted.begun(handle)
        return counted


class _Counted:
    """A request that counts in an allowance until it ends: sink of its responses, and its handle."""

    __slots__ = ("_allowance", "_ended", "_sink", "handle")

    def __init__(self, sink: ResponseSink, allowance: Allowance) -> None:
        self._sink: ResponseSink | None = sink
        self._allowance = allowance
        self._ended = False
        self.handle: RequestHandle | None = None

    def deliver(self, response: InferenceResponse) -> None:
        sink = self._sink
        if response.final:
            self.end()
        if sink is not None:
            sink.deliver(response)

    def begun(self, handle: RequestHandle) -> None:
        """It runs, unless it has ended already."""
        if not self._ended:
            self.handle = handle

    def end(self) -> None:
        """It counts no more. Idempotent."""
        if not self._ended:
            self._ended = True
            self._sink = self.handle = None  # they refer to us
            self._allowance.end()

    def cancel(self) -> None:
        if self.handle is not None:
            self.handle.cancel()
        self.end()

    def pause(self) -> None:
        if self.handle is not None:
            self.handle.pause()

    def resume(self) -> None:
        if self.handle is not None:
            self.handle.resume()


class Gate:
    """The callers of a configuration. A file that is read again forgets which tokens were good."""

    def __init__(self, options: AuthOptions, clock: Clock) -> None:
        self.options = options
        self._clock = clock
        self._keys: dict[str, Caller] = {}
        self._verifiers: dict[str, JwtVerifier] = {}
        self._anonymous = Caller("", RoleGrant(()))
        self._limits: dict[str, tuple[object, ...]] = {}
        self._tokens: dict[bytes, Caller] = {}
        self._subjects: dict[tuple[str, str], Allowance] = {}
        self._jwt: Any = None
        self.tenancy: Tenancy | None = None
        self.reload()

    def reload(self) -> None:
        """Read the files again. Raises InvalidArgument, and what was read before stays in use; but a key that was taken away
        is not kept by a file of tenants that is wrong."""
        config = read_auth_config(self.options.file) if self.options.file else AuthConfig()
        problem = None
        try:
            tenancy = self._read_tenancy(config)
        except InvalidArgument as error:
            if self.tenancy is None:
                raise
            tenancy, problem = self.tenancy, error
        anonymous = RoleGrant(()) if self.options.required else RoleGrant(config.anonymous)
        verifiers = self._read_verifiers(config, "" if tenancy is None else tenancy.token_claim)
        self._keys = {
            key.sha256: self._keep_allowance(key.sha256, Caller(key.name, RoleGrant(key.roles, key.models), _allowance(key)), key)
            for key in config.keys
        }
        unchanged = {
            issuer
            for issuer, verifier in verifiers.items()
            if (before := self._verifiers.get(issuer)) is not None and _limits(before.entry) == _limits(verifier.entry)
        }
        self._subjects = {key: allowance for key, allowance in self._subjects.items() if key[0] in unchanged}
        self._verifiers = verifiers
        self._anonymous = Caller("", anonymous)
        self.tenancy = tenancy
        if tenancy is not None:
            self._anonymous.tenant = tenancy.default
            for caller in self._keys.values():
                caller.tenant = tenancy.of_key(caller.name)
        self._tokens = {}
        self._limits = {key.sha256: _limits(key) for key in config.keys}
        if problem is not None:
            raise problem

    def _keep_allowance(self, digest: str, caller: Caller, limits: Limits) -> Caller:
        """A key whose limits have not changed keeps its state: reading the file again does not fill the bucket."""
        before = self._keys.get(digest)
        if before is not None and self._limits.get(digest) == _limits(limits):
            caller.allowance = before.allowance
        return caller

    def _read_tenancy(self, config: AuthConfig) -> Tenancy | None:
        if not self.options.tenants_file:
            return None
        from tpy.frontends.access.tenancy import Tenancy  # most servers have no tenants

        return Tenancy(self.options.tenants_file, config)

    def _read_verifiers(self, config: AuthConfig, tenant_claim: str) -> dict[str, JwtVerifier]:
        if not config.jwt:
            return {}
        try:
            self._jwt = importlib.import_module("jwt")
            importlib.import_module("cryptography")
        except ImportError as error:
            raise InvalidArgument(
                f"--auth-config: tokens need the package PyJWT, and cryptography: pip install PyJWT cryptography ({error})"
            ) from None
        folder = Path(self.options.file).parent
        return {entry.issuer: JwtVerifier(entry, folder, self._jwt, tenant_claim) for entry in config.jwt}

    def identify(self, authorization: str | None, api_key: str | None) -> Caller:
        """Returns who sends these values of `Authorization` and `X-API-Key`. Raises Unauthenticated for a credential that is
        wrong, also where none would do."""
        if (authorization is None and api_key is None) or not self.options.file:
            return self._anonymous
        if authorization is not None:
            scheme, _, credential = authorization.partition(" ")
            if scheme.lower() != "bearer":
                raise Unauthenticated("expected 'Authorization: Bearer <key or token>', or 'X-API-Key: <key>'")
            credential = credential.strip(" ")
            if api_key is not None and not hmac.compare_digest(credential.encode(), api_key.encode()):
                raise Unauthenticated("expected one credential, the request has two: Authorization and X-API-Key")
        else:
            credential = api_key or ""
        if len(credential) > ACCESS_TOKEN_CHARACTERS_MAX:
            raise Unauthenticated(f"expected a credential of at most {ACCESS_TOKEN_CHARACTERS_MAX} characters")
        hashed = hashlib.sha256(credential.encode("utf-8", "surrogateescape"))
        caller = self._keys.get(hashed.hexdigest())
        if caller is not None:
            return caller
        if self._verifiers and authorization is not None:
            return self._bearer(credential, hashed.digest())
        raise Unauthenticated("the API key is not known here")

    def sent_for(self, caller: Caller, tenant: str, peer: str) -> Caller:
        """Returns the caller as one who sends requests of the tenant that the header of `tenancy` names, if his address is that
        of a trusted proxy."""
        named = None if self.tenancy is None else self.tenancy.of_header(tenant, peer)
        if named is not None:
            caller = Caller(caller.name, caller.grant, caller.allowance, caller.expires_ms)
            caller.tenant = named
        return caller

    def _bearer(self, text: str, hashed: bytes) -> Caller:
        now_ms = self._clock.wall_ms()
        caller = self._tokens.get(hashed)
        if caller is None:
            verifier = self._verifiers.get(str(issuer_of(text, self._jwt)))
            if verifier is None:
                raise Unauthenticated("the token's issuer is not trusted here")
            token = verifier.verify(text)
            caller = Caller(
                token.subject or "token", RoleGrant(token.roles, token.models), self._subject(verifier, token), token.expires_ms
            )
            if self.tenancy is not None:
                caller.tenant = self.tenancy.of_claim(token.tenant)
            if len(self._tokens) >= ACCESS_TOKENS_REMEMBERED_MAX:
                del self._tokens[next(iter(self._tokens))]
            self._tokens[hashed] = caller
        if caller.expires_ms is not None and now_ms >= caller.expires_ms:
            self._tokens.pop(hashed, None)
            raise Unauthenticated("the token has expired")
        return caller

    def _subject(self, verifier: JwtVerifier, token: ValidToken) -> Allowance | None:
        """The allowance of a token's subject, whatever token he comes with."""
        key = verifier.entry.issuer, token.subject
        found = self._subjects.get(key)
        if found is None:
            found = _allowance(verifier.entry)
            if found is not None:
                if len(self._subjects) >= ACCESS_SUBJECTS_MAX:
                    self._subjects = {each: one for each, one in self._subjects.items() if one.running}
                self._subjects[key] = found
        return found


def _limits(limits: Limits) -> tuple[object, ...]:
    return limits.requests_per_s, limits.burst, limits.concurrency


def _allowance(limits: Limits) -> Allowance | None:
    made = Allowance(per_s=limits.requests_per_s, burst=limits.burst, concurrency=limits.concurrency)
    return None if made.is_unlimited else made


_gates: weakref.WeakValueDictionary[AuthOptions, Gate] = weakref.WeakValueDictionary()


def shared_gate(options: AuthOptions, clock: Clock | None = None) -> Gate:
    """As `gate_of`."""
    gate = _gates.get(options)
    if gate is None:
        gate = _gates[options] = Gate(options, clock or SystemClock())
    return gate
