from . import _base
from ._base import (
    ClientConfigurationError as ClientConfigurationError,
    FatalPostgresError as FatalPostgresError,
    InterfaceError as InterfaceError,
    InterfaceWarning as InterfaceWarning,
    InternalClientError as InternalClientError,
    OutdatedSchemaCacheError as OutdatedSchemaCacheError,
    PostgresError as PostgresError,
    PostgresLogMessage as PostgresLogMessage,
    ProtocolError as ProtocolError,
    TargetServerAttributeNotMatched as TargetServerAttributeNotMatched,
    UnknownPostgresError as UnknownPostgresError,
    UnsupportedClientFeatureError as UnsupportedClientFeatureError,
    UnsupportedServerFeatureError as UnsupportedServerFeatureError,
)

# The comment is the SQLSTATE; the order is theirs.
class PostgresWarning(_base.PostgresLogMessage, Warning): ...  # 01000
class DeprecatedFeature(PostgresWarning): ...  # 01P01
class PostgresConnectionError(_base.PostgresError): ...  # 08000
class ClientCannotConnectError(PostgresConnectionError): ...  # 08001
class ConnectionDoesNotExistError(PostgresConnectionError): ...  # 08003
class ConnectionRejectionError(PostgresConnectionError): ...  # 08004
class ConnectionFailureError(PostgresConnectionError): ...  # 08006
class TransactionResolutionUnknownError(PostgresConnectionError): ...  # 08007
class ProtocolViolationError(PostgresConnectionError): ...  # 08P01
class FeatureNotSupportedError(_base.PostgresError): ...  # 0A000
class InvalidCachedStatementError(FeatureNotSupportedError): ...  # 0A000, from RevalidateCachedQuery
class DataError(_base.PostgresError): ...  # 22000
class StringDataRightTruncationError(DataError): ...  # 22001
class NumericValueOutOfRangeError(DataError): ...  # 22003
class NullValueNotAllowedError(DataError): ...  # 22004
class DatetimeFieldOverflowError(DataError): ...  # 22008
class CharacterNotInRepertoireError(DataError): ...  # 22021
class InvalidParameterValueError(DataError): ...  # 22023
class InvalidTextRepresentationError(DataError): ...  # 22P02
class UntranslatableCharacterError(DataError): ...  # 22P05
class IntegrityConstraintViolationError(_base.PostgresError): ...  # 23000
class NotNullViolationError(IntegrityConstraintViolationError): ...  # 23502
class ForeignKeyViolationError(IntegrityConstraintViolationError): ...  # 23503
class UniqueViolationError(IntegrityConstraintViolationError): ...  # 23505
class CheckViolationError(IntegrityConstraintViolationError): ...  # 23514
class ExclusionViolationError(IntegrityConstraintViolationError): ...  # 23P01
class InvalidTransactionStateError(_base.PostgresError): ...  # 25000
class ActiveSQLTransactionError(InvalidTransactionStateError): ...  # 25001
class ReadOnlySQLTransactionError(InvalidTransactionStateError): ...  # 25006
class NoActiveSQLTransactionError(InvalidTransactionStateError): ...  # 25P01
class InFailedSQLTransactionError(InvalidTransactionStateError): ...  # 25P02
class IdleInTransactionSessionTimeoutError(InvalidTransactionStateError): ...  # 25P03
class InvalidSQLStatementNameError(_base.PostgresError): ...  # 26000
class InvalidAuthorizationSpecificationError(_base.PostgresError): ...  # 28000
class InvalidPasswordError(InvalidAuthorizationSpecificationError): ...  # 28P01
class DependentPrivilegeDescriptorsStillExistError(_base.PostgresError): ...  # 2B000
class DependentObjectsStillExistError(DependentPrivilegeDescriptorsStillExistError): ...  # 2BP01
class InvalidTransactionTerminationError(_base.PostgresError): ...  # 2D000
class InvalidCatalogNameError(_base.PostgresError): ...  # 3D000
class InvalidSchemaNameError(_base.PostgresError): ...  # 3F000
class TransactionRollbackError(_base.PostgresError): ...  # 40000
class SerializationError(TransactionRollbackError): ...  # 40001
class TransactionIntegrityConstraintViolationError(TransactionRollbackError): ...  # 40002
class StatementCompletionUnknownError(TransactionRollbackError): ...  # 40003
class DeadlockDetectedError(TransactionRollbackError): ...  # 40P01
class SyntaxOrAccessError(_base.PostgresError): ...  # 42000
class InsufficientPrivilegeError(SyntaxOrAccessError): ...  # 42501
class PostgresSyntaxError(SyntaxOrAccessError): ...  # 42601
class UndefinedColumnError(SyntaxOrAccessError): ...  # 42703
class UndefinedObjectError(SyntaxOrAccessError): ...  # 42704
class DuplicateObjectError(SyntaxOrAccessError): ...  # 42710
class DuplicateFunctionError(SyntaxOrAccessError): ...  # 42723
class AmbiguousFunctionError(SyntaxOrAccessError): ...  # 42725
class DatatypeMismatchError(SyntaxOrAccessError): ...  # 42804
class UndefinedFunctionError(SyntaxOrAccessError): ...  # 42883
class UndefinedTableError(SyntaxOrAccessError): ...  # 42P01
class DuplicateDatabaseError(SyntaxOrAccessError): ...  # 42P04
class DuplicatePreparedStatementError(SyntaxOrAccessError): ...  # 42P05
class DuplicateSchemaError(SyntaxOrAccessError): ...  # 42P06
class DuplicateTableError(SyntaxOrAccessError): ...  # 42P07
class InsufficientResourcesError(_base.PostgresError): ...  # 53000
class DiskFullError(InsufficientResourcesError): ...  # 53100
class OutOfMemoryError(InsufficientResourcesError): ...  # 53200
class TooManyConnectionsError(InsufficientResourcesError): ...  # 53300
class ConfigurationLimitExceededError(InsufficientResourcesError): ...  # 53400
class ProgramLimitExceededError(_base.PostgresError): ...  # 54000
class StatementTooComplexError(ProgramLimitExceededError): ...  # 54001
class ObjectNotInPrerequisiteStateError(_base.PostgresError): ...  # 55000
class ObjectInUseError(ObjectNotInPrerequisiteStateError): ...  # 55006
class CantChangeRuntimeParamError(ObjectNotInPrerequisiteStateError): ...  # 55P02
class LockNotAvailableError(ObjectNotInPrerequisiteStateError): ...  # 55P03
class OperatorInterventionError(_base.PostgresError): ...  # 57000
class QueryCanceledError(OperatorInterventionError): ...  # 57014
class AdminShutdownError(OperatorInterventionError): ...  # 57P01
class CrashShutdownError(OperatorInterventionError): ...  # 57P02
class CannotConnectNowError(OperatorInterventionError): ...  # 57P03
class DatabaseDroppedError(OperatorInterventionError): ...  # 57P04
class IdleSessionTimeoutError(OperatorInterventionError): ...  # 57P05
class PostgresSystemError(_base.PostgresError): ...  # 58000
class PostgresIOError(PostgresSystemError): ...  # 58030
class PLPGSQLError(_base.PostgresError): ...  # P0000
class RaiseError(PLPGSQLError): ...  # P0001
class NoDataFoundError(PLPGSQLError): ...  # P0002
class AssertError(PLPGSQLError): ...  # P0004
class InternalServerError(_base.PostgresError): ...  # XX000
class DataCorruptedError(InternalServerError): ...  # XX001
class IndexCorruptedError(InternalServerError): ...  # XX002
