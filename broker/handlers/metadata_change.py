"""Changes the cluster's metadata for a client, and tells it the reason of a failure."""

from __future__ import annotations

import logging

from tidelog.broker.handlers.services import MetadataServices
from tidelog.coordinator.cluster.log.append_group import Build
from tidelog.coordinator.cluster.log.metadata_log import EntryTooLarge
from tidelog.coordinator.cluster.state.draft import InvalidRecord
from tidelog.coordinator.cluster.state.features import FeatureRefused
from tidelog.errors import Refused, TidelogError
from tidelog.protocol.error_codes import ErrorCode
from tidelog.storage.object_store import AccessDenied, StoreError, StoreMisconfigured

logger = logging.getLogger(__name__)


class ChangeFailed(TidelogError):
    """The change was not made, or its outcome is unknown (REQUEST_TIMED_OUT, NOT_CONTROLLER).

    The client may ask again, and then learns the present state.
    """

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


async def change_metadata(broker: MetadataServices, build: Build) -> None:
    """Append the records that `build` makes on the newest state; durable when this returns.

    Raises ChangeFailed.
    """
    try:
        await broker.metadata.append(broker.incarnation.epoch, build)
    except (EntryTooLarge, InvalidRecord) as error:
        raise ChangeFailed(ErrorCode.INVALID_REQUEST, str(error)) from error
    except FeatureRefused as error:
        raise ChangeFailed(ErrorCode.UNSUPPORTED_VERSION, str(error)) from error
    except (AccessDenied, StoreMisconfigured) as error:
        logger.error("the metadata cannot be changed", extra={"why": str(error)})
        raise ChangeFailed(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)) from error
    except (Refused, StoreError) as error:
        logger.warning("a change of the metadata failed", extra={"why": str(error)})
        raise ChangeFailed(ErrorCode.REQUEST_TIMED_OUT, str(error)) from error
    except TidelogError as error:
        # This incarnation has ended; the client may ask its successor.
        raise ChangeFailed(ErrorCode.NOT_CONTROLLER, str(error)) from error
