//! A short word for each error, so that a program need not read the text.

use maru::{AttachError, BackingError, CallError, LoadError, NamespaceError, OpenError, ReadError, WriteError};
use maru_layout::superblock::SuperblockError;

use crate::line::Refusal;

/// An error with a word of its own.
pub(crate) trait Code: std::fmt::Display {
    fn code(&self) -> &'static str;
}

impl<E: Code> From<E> for Refusal {
    fn from(error: E) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

impl Code for OpenError {
    fn code(&self) -> &'static str {
        match self {
            Self::Backing(error) => error.code(),
            Self::Superblock { source, .. } => match source {
                SuperblockError::Blank => "not_formatted",
                SuperblockError::Magic { .. } => "magic",
                SuperblockError::ByteOrder { .. } => "byte_order",
                SuperblockError::Version { .. } => "version",
                SuperblockError::Feature { .. } => "feature",
                SuperblockError::Field { .. } => "field",
                SuperblockError::TooShort { .. } => "too_short",
                SuperblockError::Checksum { .. } => "checksum",
                _ => "superblock",
            },
            Self::Spec { .. } => "spec",
            Self::ReadOnlyFormat => "read_only",
            Self::SizeMissing { .. } => "size_missing",
            Self::NotFormatted { .. } => "not_formatted",
            Self::FormatIncomplete { .. } => "format_incomplete",
            Self::NotBlank { .. } => "not_blank",
            Self::InUse { .. } => "in_use",
            Self::Config { .. } => "config",
            Self::BadConfig { .. } => "bad_config",
            Self::Regime { .. } => "regime",
            Self::NotShared { .. } => "not_shared",
            Self::Overlap { .. } => "overlap",
            Self::Replaced { .. } => "replaced",
            _ => "open",
        }
    }
}

impl Code for BackingError {
    fn code(&self) -> &'static str {
        match self {
            Self::NotFound { .. } => "not_found",
            Self::IsDirectory { .. } => "is_directory",
            Self::WrongFileType { .. } => "wrong_file_type",
            Self::UnknownSize { .. } => "unknown_size",
            Self::NoSpace { .. } => "no_space",
            Self::FileSizeLimit { .. } => "file_size_limit",
            Self::Misaligned { .. } => "misaligned",
            Self::ZeroLength { .. } => "zero_length",
            Self::OutOfBounds { .. } => "out_of_bounds",
            Self::EnvMissing { .. } => "env_missing",
            Self::EnvUnreadable { .. } => "env_unreadable",
            Self::EnvDisagrees { .. } => "env_disagrees",
            Self::LockUnsupported { .. } => "lock_unsupported",
            Self::Unnamed { .. } => "unnamed",
            Self::PagesUnavailable { .. } => "pages_unavailable",
            Self::TableFull { .. } => "table_full",
            Self::PermissionDenied { .. } => "permission_denied",
            _ => "io",
        }
    }
}

impl Code for AttachError {
    fn code(&self) -> &'static str {
        match self {
            Self::Full { .. } => "participants_full",
            Self::EngineName { .. } => "engine_name",
            Self::ReadOnly => "read_only",
            Self::Call(error) => error.code(),
            Self::Lock(error) => error.code(),
            _ => "attach",
        }
    }
}

impl Code for CallError {
    fn code(&self) -> &'static str {
        match self {
            Self::Fenced { .. } => "fenced",
            Self::ForeignProcess => "foreign_process",
            Self::Replaced => "replaced",
            Self::Resized { .. } => "resized",
            Self::Lost => "lost",
            Self::NoPayload => "no_payload",
            Self::ForeignNamespace { .. } => "foreign_namespace",
            _ => "call",
        }
    }
}

impl Code for LoadError {
    fn code(&self) -> &'static str {
        match self {
            Self::Call(error) => error.code(),
            Self::Expired => "expired",
            Self::Invalidated => "invalidated",
            Self::Damaged { .. } => "damaged",
            Self::Length { .. } => "length",
            _ => "load",
        }
    }
}

impl Code for ReadError {
    fn code(&self) -> &'static str {
        match self {
            Self::Miss(why) => why.code(),
            Self::Load(error) => error.code(),
            _ => "read",
        }
    }
}

impl Code for WriteError {
    fn code(&self) -> &'static str {
        match self {
            Self::Call(error) => error.code(),
            Self::OutOfBounds { .. } => "out_of_bounds",
            Self::Superseded => "superseded",
            Self::Ended => "ended",
            _ => "write",
        }
    }
}

impl Code for NamespaceError {
    fn code(&self) -> &'static str {
        match self {
            Self::Call(error) => error.code(),
            Self::Missing { .. } => "missing_field",
            Self::Field { .. } => "bad_field",
            Self::TooLong { .. } => "too_long",
            Self::Full { .. } => "namespaces_full",
            Self::Busy { .. } => "namespaces_busy",
            _ => "namespace",
        }
    }
}
