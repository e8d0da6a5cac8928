//! Object storage: lists, gets, puts and deletes, each with a bound.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt as _;
use maio::template::MAX_BYTES;
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::http::HttpBuilder;
use object_store::path::Path;
use object_store::{
    ClientOptions, Error, ObjectMeta, ObjectStore, ObjectStoreExt as _, ObjectStoreScheme, PutMode,
    PutOptions, RetryConfig, UpdateVersion,
};
use reqwest::Url;

use crate::decide::MOST_LISTED;
use crate::error::{Result, StoreError};
use crate::known::{Listed, Version};
use crate::slot::Place;

/// How often a request is made again at once, and for how long; a round that still fails is repeated later.
const RETRIES: usize = 3;
const RETRYING: Duration = Duration::from_secs(30);

/// The fleet's folder in object storage.
#[derive(Clone, Debug)]
pub struct Remote {
    store: Arc<dyn ObjectStore>,
    folder: Path,
    writable: bool,
}

/// All objects of the fleet's folder.
#[derive(Debug)]
pub struct Listing {
    /// Those that have a place.
    pub objects: Vec<Listed>,
    /// Whether there are no more.
    pub complete: bool,
}

/// An object that was fetched.
#[derive(Debug)]
pub struct Fetched {
    /// Its contents, no more than a template may have.
    pub bytes: Vec<u8>,
    /// Which version that is.
    pub tag: String,
    /// The same, for conditions.
    pub version: Version,
}

/// What became of a conditional write.
#[derive(Debug)]
pub enum Written {
    /// It is there, as this version.
    Done(String, Version),
    /// Another node was faster.
    Lost,
    /// The storage takes nothing from this node, or knows no conditions.
    Refused(String),
}

impl Remote {
    /// The storage that a URL names, with credentials from the environment or the machine.
    ///
    /// # Errors
    /// The URL or the environment is wrong.
    pub fn open(text: &str) -> Result<Self> {
        let problem = |problem: String| StoreError::Url {
            url: text.to_owned(),
            problem,
        };
        let url = Url::parse(text).map_err(|error| problem(error.to_string()))?;
        let (scheme, folder) =
            ObjectStoreScheme::parse(&url).map_err(|error| problem(error.to_string()))?;
        let retry = RetryConfig {
            max_retries: RETRIES,
            retry_timeout: RETRYING,
            ..RetryConfig::default()
        };
        let folder = Path::parse(folder.as_ref()).map_err(|error| problem(error.to_string()))?;
        let built = |error: Error| problem(error.to_string());
        let (store, writable): (Arc<dyn ObjectStore>, bool) = match scheme {
            ObjectStoreScheme::AmazonS3 => {
                let builder = AmazonS3Builder::from_env().with_url(text).with_retry(retry);
                (Arc::new(builder.build().map_err(built)?), true)
            }
            ObjectStoreScheme::GoogleCloudStorage => {
                let builder = GoogleCloudStorageBuilder::from_env()
                    .with_url(text)
                    .with_retry(retry);
                (Arc::new(builder.build().map_err(built)?), true)
            }
            ObjectStoreScheme::MicrosoftAzure => {
                let builder = MicrosoftAzureBuilder::from_env()
                    .with_url(text)
                    .with_retry(retry);
                (Arc::new(builder.build().map_err(built)?), true)
            }
            ObjectStoreScheme::Http => {
                let server = url.origin().ascii_serialization();
                // Without TLS only where the URL says so.
                let options = ClientOptions::new().with_allow_http(url.scheme() == "http");
                let builder = HttpBuilder::new()
                    .with_url(server)
                    .with_client_options(options)
                    .with_retry(retry);
                // A server of files knows no conditions.
                (Arc::new(builder.build().map_err(built)?), false)
            }
            _ => {
                let known = "name an s3://, gs://, az:// or http(s):// storage; \
                             a directory that nodes share needs no ppc-store: name it by MAIO's setting 'store'";
                return Err(problem(known.to_owned()));
            }
        };
        Ok(Self::over(store, folder, writable))
    }

    /// A folder of any storage.
    #[must_use]
    pub fn over(store: Arc<dyn ObjectStore>, folder: Path, writable: bool) -> Self {
        Self {
            store,
            folder,
            writable,
        }
    }

    /// Whether anything can be put there.
    #[must_use]
    pub const fn is_writable(&self) -> bool {
        self.writable
    }

    /// What is there. Objects whose names are not those of templates are skipped.
    ///
    /// # Errors
    /// The storage cannot be reached, or refuses.
    pub async fn list(&self) -> Result<Listing> {
        let mut found = self.store.list(Some(&self.folder));
        let mut objects = Vec::new();
        let mut seen = 0;
        while let Some(object) = found.try_next().await? {
            seen += 1;
            if seen > MOST_LISTED {
                return Ok(Listing {
                    objects,
                    complete: false,
                });
            }
            objects.extend(self.listed(&object));
        }
        Ok(Listing {
            objects,
            complete: true,
        })
    }

    fn listed(&self, object: &ObjectMeta) -> Option<Listed> {
        let name = object
            .location
            .as_ref()
            .strip_prefix(self.folder.as_ref())?;
        Some(Listed {
            place: Place::parse(name.trim_start_matches('/'))?,
            tag: tag(object),
            size: object.size,
            modified_s: u64::try_from(object.last_modified.timestamp()).unwrap_or(0),
        })
    }

    /// An object; `None` if it is gone, or larger than a template may be.
    ///
    /// # Errors
    /// The storage cannot be reached, or refuses.
    pub async fn get(&self, place: &Place) -> Result<Option<Fetched>> {
        let found = match self.store.get(&self.path(place)?).await {
            Err(Error::NotFound { .. }) => return Ok(None),
            found => found?,
        };
        let meta = found.meta.clone();
        if meta.size > MAX_BYTES as u64 {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        let mut parts = found.into_stream();
        while let Some(part) = parts.try_next().await? {
            // It may be larger than it says.
            if bytes.len() + part.len() > MAX_BYTES {
                return Ok(None);
            }
            bytes.extend_from_slice(&part);
        }
        Ok(Some(Fetched {
            bytes,
            tag: tag(&meta),
            version: Version {
                e_tag: meta.e_tag,
                version: meta.version,
            },
        }))
    }

    /// Puts an object where none is, or instead of this version.
    ///
    /// # Errors
    /// The storage cannot be reached.
    pub async fn put(
        &self,
        place: &Place,
        bytes: Vec<u8>,
        instead: Option<Version>,
    ) -> Result<Written> {
        let mode = match instead {
            None => PutMode::Create,
            Some(Version { e_tag, version }) => PutMode::Update(UpdateVersion { e_tag, version }),
        };
        let options = PutOptions::from(mode);
        let size = bytes.len();
        match self
            .store
            .put_opts(&self.path(place)?, bytes.into(), options)
            .await
        {
            Ok(done) => {
                let version = Version {
                    e_tag: done.e_tag,
                    version: done.version,
                };
                let tag = version
                    .e_tag
                    .as_deref()
                    .map_or_else(|| size.to_string(), plain);
                Ok(Written::Done(tag, version))
            }
            Err(
                Error::AlreadyExists { .. } | Error::Precondition { .. } | Error::NotFound { .. },
            ) => Ok(Written::Lost),
            Err(
                error @ (Error::PermissionDenied { .. }
                | Error::NotImplemented { .. }
                | Error::NotSupported { .. }),
            ) => Ok(Written::Refused(error.to_string())),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes an object. It is not an error if another node has done so, or if this node may not.
    ///
    /// # Errors
    /// The storage cannot be reached.
    pub async fn delete(&self, place: &Place) -> Result<bool> {
        match self.store.delete(&self.path(place)?).await {
            Ok(()) => Ok(true),
            Err(Error::NotFound { .. } | Error::PermissionDenied { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn path(&self, place: &Place) -> Result<Path> {
        let name = place.object();
        let whole = match self.folder.as_ref() {
            "" => name,
            folder => format!("{folder}/{name}"),
        };
        Ok(Path::parse(whole).map_err(Error::from)?)
    }
}

impl fmt::Display for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, folder {:?}", self.store, self.folder.as_ref())
    }
}

/// What tells this version of an object from another, however the request was made that showed it.
fn tag(object: &ObjectMeta) -> String {
    match &object.e_tag {
        Some(e_tag) => plain(e_tag),
        None => format!(
            "{}-{}",
            object.size,
            object.last_modified.timestamp_millis()
        ),
    }
}

/// Some storages quote tags only in headers.
fn plain(e_tag: &str) -> String {
    e_tag.trim_start_matches("W/").trim_matches('"').to_owned()
}
